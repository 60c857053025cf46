"""What a node's cache says becomes metrics: of the real pool's own status, of a server that is down, of no pool."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.tiers.cache_metrics import samples
from app.tiers.curvine.adapter import CurvineL2Adapter

DOWN: dict[str, Any] = {"key": "abc", "healthy": False, "restarts": 2, "replicas": ["r"], "error": "it does not answer"}


def values(status: Mapping[str, Any]) -> dict[tuple[str, ...], float]:
    found = {}
    for one in samples("app", status):
        assert list(one.labels.items())[:2] == [("application", "app"), ("cache", "abc")]
        found[one.name.removeprefix("tierserve_"), *list(one.labels.values())[2:]] = one.value
    return found


def up(l2: list[dict[str, Any]]) -> dict[str, Any]:
    l1 = {"used_bytes": 10, "capacity_bytes": 100}
    return {**DOWN, "healthy": True, "l1": l1, "l2": l2, "l2_stores_pending": 3}


def test_a_server_that_is_down_says_just_that() -> None:
    assert values(DOWN) == {("cache_healthy",): 0, ("cache_restarts_total",): 2, ("cache_replicas",): 1}


def test_the_pool_s_state_and_counts_are_told(tmp_path: Path) -> None:
    adapter = CurvineL2Adapter({"path": str(tmp_path), "recover": False})
    try:
        told = values(up([adapter.report_status()]))
        for _ in range(3):
            adapter._service.breaker.failed("curvine-read", "a test")
        opened = values(up([adapter.report_status()]))
    finally:
        adapter.close()
    assert told["cache_bytes", "l1", "used"] == 10
    assert told["cache_stores_pending",] == 3
    assert [told["pool_breaker", state] for state in ("closed", "open", "half_open")] == [1, 0, 0]
    assert told["pool_full",] == told["pool_set_aside_total",] == told["pool_breaker_opened_total",] == 0
    assert told["pool_threads", "read", "working"] > 0
    assert told["pool_calls_total", "write", "late"] == 0
    assert opened["pool_breaker", "closed"] == 0
    assert opened["pool_breaker_opened_total",] == 1


def test_a_pool_of_another_kind_is_passed_over() -> None:
    names = {key[0] for key in values(up([{"type": "fs", "is_healthy": True}]))}
    assert "cache_bytes" in names
    assert not any(name.startswith("pool") for name in names)
