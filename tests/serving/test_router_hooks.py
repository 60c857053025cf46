"""Serve's calls in any order, without a Serve: where each request went is known before anything is decided by it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, RequestMetadata
from ray.serve.request_router import PendingRequest, RunningReplica

from app.bench import routing_event_loop as bench
from app.routing.core import RoutingCore
from app.routing.registry import close_core
from app.serving.router import TierRequestRouter

PLACE = bench._DEPLOYMENT
PROMPT = "The same beginning for everybody. " * 40


class Driven:
    """A router with two replicas, and Serve's part in what happens to a request."""

    def __init__(self) -> None:
        self.router = TierRequestRouter(
            deployment_id=PLACE,
            handle_source=DeploymentHandleSource.REPLICA,
            self_node_id="node",
            use_replica_queue_len_cache=True,
            prefer_local_node_routing=False,
            prefer_local_az_routing=False,
        )
        self.router.initialize_state()
        self.replicas = [bench._StandIn(number) for number in range(2)]
        self.router.update_replicas(self.replicas)

    @property
    def core(self) -> RoutingCore:
        return self.router._core

    async def choose(self, name: str) -> PendingRequest:
        pending = PendingRequest([{"model": "m", "prompt": PROMPT}], {}, RequestMetadata(f"trace-{name}", name))
        self.best = await self.rank(pending)
        return pending

    async def rank(self, pending: PendingRequest) -> RunningReplica:
        ranks = await self.router.choose_replicas(self.replicas, pending)
        return ranks[0][0]

    def accept(self, pending: PendingRequest, replica: RunningReplica) -> None:
        self.router.on_new_queue_len_info(replica.replica_id, 1)
        self.router.on_request_routed(pending, replica.replica_id, None)

    def complete(self, name: str, replica: RunningReplica) -> None:
        self.router.on_request_completed(replica.replica_id, name)

    def busy(self, replica: RunningReplica) -> int:
        slot = self.core.roster.slot(replica.replica_id.unique_id)
        assert slot is not None
        return self.core.load.requests(slot)

    def pieces_known(self) -> float:
        return self.core.status()["tree_nodes"]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    close_core(PLACE.app_name, PLACE.name)


def driven(test: Callable[[Driven], Awaitable[None]]) -> None:
    async def run() -> None:
        driven = Driven()
        await test(driven)
        driven.core.check_integrity()

    asyncio.run(run())


def test_a_request_is_learned_when_it_is_sent_and_over_when_it_ends() -> None:
    async def test(driven: Driven) -> None:
        pending = await driven.choose("one")
        assert driven.busy(driven.best) == 1
        assert driven.pieces_known() == 0
        pending.future.set_result(driven.best)
        driven.router.on_send_request(driven.best.replica_id)
        assert driven.pieces_known() == 1
        driven.accept(pending, driven.best)
        driven.complete("one", driven.best)
        assert driven.busy(driven.best) == 0

    driven(test)


def test_the_next_choice_knows_where_the_last_one_went_although_nobody_has_said_so() -> None:
    async def test(driven: Driven) -> None:
        pending = await driven.choose("one")
        other = next(one for one in driven.replicas if one is not driven.best)
        pending.future.set_result(other)
        await driven.choose("two")
        assert driven.best is other
        assert driven.core.status()["reason:prefix"] == 1

    driven(test)


def test_of_many_chosen_at_once_each_is_followed() -> None:
    async def test(driven: Driven) -> None:
        chosen = [(await driven.choose(f"{number}"), driven.best) for number in range(6)]
        for pending, best in chosen[:4]:
            pending.future.set_result(best)
        for pending, _ in chosen[4:]:
            pending.future.cancel()
        await asyncio.sleep(0)
        await driven.choose("last")
        assert driven.core.status()["in_flight"] == 5
        for number, (pending, best) in enumerate(chosen[:4]):
            driven.router.on_send_request(best.replica_id)
            driven.accept(pending, best)
            driven.complete(f"{number}", best)
        assert driven.core.status()["in_flight"] == 1

    driven(test)


def test_a_caller_that_leaves_gives_back_its_load_before_anybody_is_chosen_for() -> None:
    async def test(driven: Driven) -> None:
        pending = await driven.choose("left")
        pending.future.cancel()
        await driven.choose("next")
        assert sum(map(driven.busy, driven.replicas)) == 1
        assert driven.pieces_known() == 0

    driven(test)


def test_a_request_that_is_chosen_for_again_counts_once() -> None:
    """All were full, so Serve asks again; then it is rejected, and asks once more with another future."""

    async def test(driven: Driven) -> None:
        pending = await driven.choose("one")
        for _ in range(3):
            best = await driven.rank(pending)
            assert driven.core.status()["in_flight"] == 1
        pending.future.set_result(best)
        driven.router.on_send_request(best.replica_id)
        driven.router.on_new_queue_len_info(best.replica_id, 1)
        pending.reset_future()
        again = await driven.rank(pending)
        driven.complete("one", best)
        pending.future.set_result(again)
        driven.router.on_send_request(again.replica_id)
        driven.accept(pending, again)
        assert driven.core.status()["in_flight"] == 1
        driven.complete("one", again)
        assert driven.core.status()["in_flight"] == 0

    driven(test)


def test_hooks_never_raise(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    async def test(driven: Driven) -> None:
        pending = await driven.choose("one")
        pending.future.set_result(driven.best)
        with monkeypatch.context() as patched:
            for hook in ("settled", "accepted", "observed", "ended", "replica_died", "choose"):
                patched.setattr(driven.core, hook, broken)
            driven.router.on_send_request(driven.best.replica_id)
            driven.accept(pending, driven.best)
            driven.complete("one", driven.best)
            await driven.choose("two")
            driven.router.on_replica_actor_died(driven.best.replica_id)
        assert caplog.text.count("a bug") >= 5

    driven(test)
