"""What if: the same requests with something changed about them or about the fleet."""

import heapq
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from app.sim.spec import FleetSpec, Outage
from app.sim.workload import Job, Workload

_FLOOD_NAMES = 1 << 31
_CHANGED = 1 << 30


def slower_l2(spec: FleetSpec, factor: float) -> FleetSpec:
    """Reads, writes and latency of L2, all by this factor."""
    return replace(
        spec,
        l2_read_bytes_s=spec.l2_read_bytes_s / factor,
        l2_write_bytes_s=spec.l2_write_bytes_s / factor,
        l2_latency_s=spec.l2_latency_s * factor,
    )


def dead_node(spec: FleetSpec, last_at: float) -> FleetSpec:
    """Node 0 dies after a third of the time and is back, empty, after half of it."""
    return replace(spec, outage=Outage(0, last_at / 3, last_at / 2))


def flooded(workload: Workload, last_at: float, rate: float, *, tokens: int = 8192, output: int = 16) -> Workload:
    """From a third to half of the time one more tenant sends prompts that nobody can reuse, so many a second."""

    def flood() -> Iterator[Job]:
        fresh, blocks = count(_FLOOD_NAMES), -(-tokens // workload.block_tokens)
        for number in range(int(rate * last_at / 6)):
            names = tuple(next(fresh) for _ in range(blocks))
            yield Job(last_at / 3 + number / rate, tokens, output, names, tenant="flood")

    return replace(workload, jobs=lambda: heapq.merge(workload.jobs(), flood(), key=lambda job: job.at))


def changed_prefix(workload: Workload, last_at: float) -> Workload:
    """At half of the time everything that prompts begin with becomes another text: all caches are stale at once."""

    def jobs() -> Iterator[Job]:
        for job in workload.jobs():
            late = job.at >= last_at / 2
            yield replace(job, names=tuple(name + _CHANGED for name in job.names)) if late else job

    return replace(workload, jobs=jobs)
