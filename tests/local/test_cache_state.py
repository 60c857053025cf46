"""A cache server that goes down is told once and told again when it is back: of a real one, and of the rule alone."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from app.local.cache_state import CacheLosses, read_pulses
from app.tiers.cache_spec import CacheSpec
from app.tiers.node_cache import NAMESPACE, NodeCache, actor_name
from app.tiers.pulse import Pulse
from tests.conftest import WaitUntil

UP, DOWN = Pulse("k", up=True), Pulse("k", up=False)


def test_down_and_back_are_a_line_each() -> None:
    now = 0.0
    losses = CacheLosses(lambda: now)
    assert losses.changes([UP]) == []
    assert losses.changes([DOWN]) == [
        "cache k: its server is down, engines go on without L1 and L2 while another is started"
    ]
    assert losses.changes([DOWN]) == []
    now = 8.7
    assert losses.changes([UP]) == ["cache k: its server is back after 9 s (L1 begins empty)"]
    assert losses.changes([UP]) == []


def test_each_cache_is_told_of_by_itself_and_no_answer_is_no_news() -> None:
    losses = CacheLosses(lambda: 0.0)
    assert len(losses.changes([DOWN, Pulse("other", up=True)])) == 1
    assert losses.changes([]) == []
    assert losses.changes([Pulse("other", up=True)]) == []
    assert len(losses.changes([UP, Pulse("other", up=False)])) == 2


@pytest.fixture
def cache(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A node's cache with one replica's lease, on a private Ray."""
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    actor = NodeCache.options(name=actor_name("k", "node"), namespace=NAMESPACE).remote(  # type: ignore[attr-defined]
        "k", CacheSpec(0.1, 64, "LRU", 1, "cpu", None), "app"
    )
    ray.get(actor.attach.remote("a replica"))
    yield actor
    ray.get(actor.stop.remote())
    ray.shutdown()


def test_a_server_that_is_killed_is_down_and_back_when_its_actor_has_started_another(
    cache: Any, wait_until: WaitUntil
) -> None:
    losses = CacheLosses()
    assert read_pulses() == [UP]
    assert losses.changes(read_pulses()) == []
    victim = ray.get(cache.status.remote())["pid"]
    os.kill(victim, signal.SIGKILL)
    told: list[str] = []

    def both_told() -> bool:
        told.extend(losses.changes(read_pulses()))
        return len(told) >= 2

    wait_until(both_told, "down and back are told", 60)
    assert "its server is down" in told[0]
    assert "its server is back" in told[1]
    assert ray.get(cache.status.remote())["pid"] != victim


def test_without_ray_there_is_no_news() -> None:
    assert read_pulses() == []
    assert not ray.is_initialized(), "and asking starts none"
