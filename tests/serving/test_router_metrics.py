"""Counters of a core reach Ray's metrics as totals and states; a core that starts anew does not make a total fall."""

from typing import Any

import pytest
import ray.util.metrics

from app.routing.core import RoutingCore
from app.routing.policy import CacheReport, Replica, Request
from app.routing.prompt import read_prompt
from app.serving.router_metrics import RouterMetrics

PLACE = ("app", "engine:m")


class Recorded:
    """Ray's metric classes, keeping what they are told: outside a cluster Ray keeps nothing."""

    values: dict[tuple[str, str], float]

    def __init__(self, name: str, tag_keys: tuple[str, ...]) -> None:
        self.name, self.own = name, tag_keys[-1]

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.values[self.name, tags[self.own]] = value

    def inc(self, value: float, tags: dict[str, str]) -> None:
        self.values[self.name, tags[self.own]] = self.values.get((self.name, tags[self.own]), 0.0) + value


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], float]:
    Recorded.values = {}
    for kind in ("Counter", "Gauge"):
        monkeypatch.setattr(ray.util.metrics, kind, Recorded)
    return Recorded.values


def used(requests: int) -> RoutingCore:
    core = RoutingCore("prefix_aware")
    core.update_replicas([Replica("a", "node", 10)])
    for number in range(requests):
        core.choose(Request(f"r{number}", read_prompt({"prompt": "p" * 999}), None, None, ""))
        core.settled(f"r{number}", "a")
        core.completed(f"r{number}", CacheReport(300, 64, 0, 0, 236), "a")
        core.ended(f"r{number}", "a")
    return core


def test_what_grows_is_a_total_and_what_is_is_a_state(values: dict[tuple[str, str], float]) -> None:
    metrics, core = RouterMetrics(), used(3)
    for _ in range(2):
        metrics.publish({PLACE: core})
    decisions = {what: value for (name, what), value in values.items() if name == "tierserve_routing_decisions_total"}
    assert sum(decisions.values()) == 3
    assert values["tierserve_routing_tokens_total", "prompt"] == 900
    assert values["tierserve_routing_tokens_total", "hit_reported"] == 192
    assert values["tierserve_routing_state", "replicas"] == 1


def test_a_new_core_adds_to_the_totals_of_the_old_one(values: dict[tuple[str, str], float]) -> None:
    metrics = RouterMetrics()
    metrics.publish({PLACE: used(3)})
    metrics.publish({PLACE: used(2)})
    assert values["tierserve_routing_tokens_total", "prompt"] == 1500


def test_without_ray_it_is_silent() -> None:
    metrics: Any = RouterMetrics()
    metrics.publish({PLACE: used(1)})
