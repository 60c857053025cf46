"""What kind of fleet, and what happens to it. Every figure that a result depends on is here or in hardware.py."""

from dataclasses import dataclass

from app.sim.hardware import Speed

L2_STREAM_BYTES_S = 1.84e9
"""Cross-node read of one stream from a Curvine pool, as the Curvine blog of 2026-08-13 measured it."""
L2_STREAMS = 4
"""Reads at a time by one node: an assumption."""
L2_WRITE_BYTES_S = 9.6e9
"""Write to a Curvine pool, from the same source."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A node dies and comes back empty, in seconds of simulated time."""

    node: int
    at: float
    back_at: float


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """Defaults: nodes like AWS g6e.24xlarge (4 L40S, 768 GiB of memory, 2 x 1,900 GB of NVMe), a third of the memory
    for L1 and all of the NVMe for L2. Bandwidths are per node; the pool as a whole delivers what its nodes' do."""

    replicas: int
    speed: Speed
    per_node: int = 4
    l1_bytes: float = 256e9
    l2_bytes: float = 3.8e12
    l2_read_bytes_s: float = L2_STREAMS * L2_STREAM_BYTES_S
    l2_write_bytes_s: float = L2_WRITE_BYTES_S
    l2_latency_s: float = 0.005
    write_backlog_s: float = 30.0
    """Stores to L2 that would wait longer are dropped, as production drops them."""
    outage: Outage | None = None
    seed: int = 1

    @property
    def nodes(self) -> int:
        return -(-self.replicas // self.per_node)
