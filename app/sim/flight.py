"""One request on its way through the fleet."""

from array import array
from dataclasses import dataclass, field

from app.routing.policy import CacheReport, Request
from app.sim.blocks import Table
from app.sim.workload import Job


@dataclass(slots=True)
class Flight:
    """arrived -> waiting -> (loading) -> ready -> prefilling -> decoding -> done

    A replica's death takes it back to `arrived`, with another id; the time to its first token goes on counting.
    """

    job: Job
    id: str
    request: Request
    tokens: "array[int] | None"
    replica: str = ""
    sent_at: float = 0.0
    table: Table = field(default_factory=Table)
    l0: int = 0
    l1: int = 0
    l2: int = 0
    opened_at: float = 0.0
    """When it left the queue and began to load."""
    there_at: float = 0.0
    """When what it loads had come; if there is nothing to load, at once."""
    began_at: float = 0.0
    first_at: float | None = None
    retries: int = 0

    @property
    def cached(self) -> int:
        return self.l0 + self.l1 + self.l2

    @property
    def computed(self) -> int:
        return self.job.tokens - self.cached

    @property
    def report(self) -> CacheReport:
        return CacheReport(self.job.tokens, self.l0, self.l1, self.l2, self.computed)
