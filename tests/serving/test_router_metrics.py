"""Counters of a core become totals and states."""

from app.routing.core import RoutingCore
from app.routing.policy import CacheReport, Replica, Request
from app.routing.prompt import read_prompt
from app.serving.router_metrics import samples


def used(requests: int) -> RoutingCore:
    core = RoutingCore("prefix_aware")
    core.update_replicas([Replica("a", "node", 10)])
    for number in range(requests):
        core.choose(Request(f"r{number}", read_prompt({"prompt": "p" * 999}), None, None, ""))
        core.settled(f"r{number}", "a")
        core.completed(f"r{number}", CacheReport(300, 64, 0, 0, 236), "a")
        core.ended(f"r{number}", "a")
    return core


def test_what_grows_is_a_total_and_what_is_is_a_state() -> None:
    values = {
        (one.name.removeprefix("tierserve_routing_"), list(one.labels.values())[-1]): one.value
        for one in samples("app", "engine:m", used(3))
    }
    assert sum(value for (name, _), value in values.items() if name == "decisions_total") == 3
    assert values["tokens_total", "prompt"] == 900
    assert values["tokens_total", "hit_reported"] == 192
    assert values["state", "replicas"] == 1


def test_samples_of_one_name_have_the_same_labels() -> None:
    labels: dict[str, set[tuple[str, ...]]] = {}
    for one in samples("app", "engine:m", used(3)):
        labels.setdefault(one.name, set()).add(tuple(one.labels))
        assert list(one.labels.items())[:3] == [
            ("application", "app"), ("deployment", "engine:m"), ("strategy", "prefix_aware"),
        ]  # fmt: skip
    assert all(len(kinds) == 1 for kinds in labels.values()), labels
