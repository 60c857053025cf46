"""What a node's cache says of itself (NodeCache.status), as metrics.

    tierserve_cache_healthy                          1 while the server answers, and L2 too
    tierserve_cache_restarts_total                   of the server
    tierserve_cache_replicas                         that hold a lease
    tierserve_cache_bytes{tier, kind}                l1, l2; used, capacity (l2: the whole pool's, on every node)
    tierserve_cache_stores_pending                   chunks on their way from L1 to L2
    tierserve_pool_breaker{state}                    1 for the state it is in: closed, open, half_open
    tierserve_pool_breaker_opened_total
    tierserve_pool_full                              1 while stores are dropped because there is no room
    tierserve_pool_puts_total{outcome}               chunks: stored, exists, failed, ...
    tierserve_pool_gets_total{outcome}               chunks: hit, absent, damaged, error, ...
    tierserve_pool_set_aside_total                   files that a reader refused
    tierserve_pool_calls_total{lane, outcome}        late, refused (breaker open) or failed, of reads, writes, metadata
    tierserve_pool_threads{lane, kind}               working, and lost to a mount that hangs

Each has the labels application and cache (the server's key). Pure; whatever a server does not say is left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from app.ray_metrics import Sample

_STATES = ("closed", "open", "half_open")
_LANE_OUTCOMES = ("late", "refused", "failed")


def samples(application: str, status: Mapping[str, Any]) -> Iterator[Sample]:
    """Raises what a status of another shape makes it raise: whoever publishes catches it."""
    labels = {"application": application, "cache": str(status["key"])}

    def sample(name: str, value: Any, **own: str) -> Sample:
        return Sample(f"tierserve_{name}", {**labels, **own}, float(value))

    yield sample("cache_healthy", bool(status["healthy"]))
    yield sample("cache_restarts_total", status["restarts"])
    yield sample("cache_replicas", len(status["replicas"]))
    if l1 := status.get("l1"):
        yield from _bytes(sample, "l1", l1["used_bytes"], l1["capacity_bytes"])
        yield sample("cache_stores_pending", status["l2_stores_pending"])
    for adapter in status.get("l2", ()):
        if "breaker" in adapter:  # ours; LMCache's others say other things
            yield from _pool(sample, adapter)


def _pool(sample: Any, adapter: Mapping[str, Any]) -> Iterator[Sample]:
    breaker, pool, keeper = adapter["breaker"], adapter["pool"], adapter["housekeeping"]
    for state in _STATES:
        yield sample("pool_breaker", state == breaker["state"], state=state)
    yield sample("pool_breaker_opened_total", breaker["opened"])
    yield sample("pool_full", adapter["full"])
    for outcome, count in pool["puts"].items():
        yield sample("pool_puts_total", count, outcome=outcome)
    for outcome, count in pool["gets"].items():
        yield sample("pool_gets_total", count, outcome=outcome)
    yield sample("pool_set_aside_total", pool["set_aside"])
    for lane, said in adapter["lanes"].items():
        for outcome in _LANE_OUTCOMES:
            yield sample("pool_calls_total", said[outcome], lane=lane, outcome=outcome)
        yield sample("pool_threads", said["workers"], lane=lane, kind="working")
        yield sample("pool_threads", said["lost"], lane=lane, kind="lost")
    if keeper["used_bytes"] is not None:  # no janitor has spoken yet
        yield from _bytes(sample, "l2", keeper["used_bytes"], keeper["capacity_bytes"])


def _bytes(sample: Any, tier: str, used: int, capacity: int) -> Iterator[Sample]:
    yield sample("cache_bytes", used, tier=tier, kind="used")
    yield sample("cache_bytes", capacity, tier=tier, kind="capacity")
