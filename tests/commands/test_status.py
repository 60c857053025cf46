"""A line for each node's cache; what is not known is not called empty or off."""

from typing import Any

from app.commands.status import _cache_line

MIB = 1 << 20
CACHE: dict[str, Any] = {"key": "k", "node_id": "0123456789", "replicas": ["a", "b"], "restarts": 1, "healthy": True}
L1 = {"used_bytes": 512 * MIB, "capacity_bytes": 1024 * MIB}


def test_a_healthy_cache() -> None:
    line = _cache_line({**CACHE, "l1": L1, "l2": [{"type": "curvine", "is_healthy": True}]})
    assert line == "cache k on node 01234567: healthy, 2 replicas, 1 restarts, L1 512 of 1,024 MiB, L2 curvine ok"


def test_a_pool_that_is_down_and_one_that_is_off() -> None:
    assert _cache_line({**CACHE, "l1": L1, "l2": [{"type": "fs", "is_healthy": False}]}).endswith("L2 fs DOWN")
    assert _cache_line({**CACHE, "l1": L1, "l2": []}).endswith("L2 off")


def test_a_server_whose_pool_is_down_serves_without_it() -> None:
    """LMCache's health is that of all its adapters."""
    pool = {"type": "curvine", "path": "/mnt/kv", "is_healthy": False}
    line = _cache_line({**CACHE, "healthy": False, "l1": L1, "l2": [pool]})
    assert ": serving without L2 (look at /mnt/kv), " in line
    assert line.endswith("L1 512 of 1,024 MiB, L2 curvine DOWN")


def test_a_server_that_does_not_answer() -> None:
    line = _cache_line({**CACHE, "healthy": False, "error": "All connection attempts failed"})
    assert ": not healthy (All connection attempts failed), " in line
    assert line.endswith("L1 unreachable, L2 unreachable")


def test_a_server_that_is_being_started() -> None:
    assert "not healthy (starting)" in _cache_line({**CACHE, "healthy": False})
