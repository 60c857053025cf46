"""A lease is renewed whatever the replica's event loop does, and no longer once it is given back."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from app.tiers import node_cache
from app.tiers.cache_spec import CacheEndpoint
from app.tiers.node_cache import CacheLease
from tests.tiers.curvine.mounts import wait_until

AT = CacheEndpoint("127.0.0.1", 1, 2, 3, "segment", "127.0.0.1", 4, 5)


class Actor:
    """A NodeCache that notes who renews; `refuses` as one that is being restarted does."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.renewed: list[str] = []
        self.released: list[str] = []
        self._refuses = refuses
        self.renew = SimpleNamespace(remote=self._renew)
        self.release = SimpleNamespace(remote=self._release)

    def _renew(self, holder: str) -> None:
        self.renewed.append(holder)
        if self._refuses:
            raise ConnectionError("the actor is being restarted")

    async def _release(self, holder: str) -> None:
        self.released.append(holder)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_cache, "RENEW_S", 0.001)
    monkeypatch.setattr(ray, "get", lambda reference, timeout: reference)


def lease_of(actor: Any) -> CacheLease:
    return CacheLease(actor, "a replica", AT)


@pytest.mark.parametrize("refuses", [False, True])
async def test_it_is_renewed_while_the_event_loop_is_blocked(refuses: bool) -> None:
    actor = Actor(refuses=refuses)
    lease = lease_of(actor)
    wait_until(lambda: len(actor.renewed) >= 3)  # without giving the loop a turn
    await lease.release()
    assert set(actor.renewed) == {"a replica"}


async def test_one_that_is_given_back_is_not_renewed() -> None:
    actor = Actor()
    lease = lease_of(actor)
    await lease.release()
    assert actor.released == ["a replica"]
    wait_until(lambda: not any(thread.name == "cache-lease" for thread in threading.enumerate()))
