"""What the tests of the janitor stand on: a server's end of a pool, and janitors with a clock of their own."""

from dataclasses import dataclass, field
from typing import Any

from app.tiers.curvine.chunkfile import frame
from app.tiers.curvine.credit import Credit
from app.tiers.curvine.exchange import Exchange
from app.tiers.curvine.janitor import Janitor, Limit
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.outcomes import Put
from app.tiers.curvine.pool import Pool
from app.tiers.curvine.retention import Lru, Retention
from app.tiers.curvine.usage import Usage
from tests.tiers.curvine.conftest import FakeClock, chunk_of, payload_of

SIZE = 1000
FILE = frame(chunk_of(0, SIZE), SIZE).size


@dataclass
class Server:
    """One server's end: a pool with credit, and what it reports."""

    root: str
    name: str
    usage: Usage = field(default_factory=Usage)
    credit: Credit = field(default_factory=lambda: Credit(limited=True))
    held: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.pool = Pool(self.root, credit=self.credit, writer=self.name)
        self.pool.open()
        self.exchange = Exchange(self.root, self.name)
        self.exchange.open()
        self.exchange.evictions()

    def put(self, number: int) -> Put:
        chunk = chunk_of(number, SIZE)
        outcome = self.pool.put(chunk, memoryview(payload_of(number, SIZE)), Landing())
        if outcome is Put.STORED:
            self.usage.stored([chunk], [FILE])
        return outcome

    def report(self) -> None:
        self.exchange.send(self.usage.drain(self.held, self.credit.largest))

    def listen(self) -> list[str]:
        status = self.exchange.status()
        if status is not None:
            self.credit.grant(status.grants.get(self.exchange.writer, 0))
        return self.exchange.evictions()


def janitor_of(root: str, capacity: int, clock: FakeClock, retention: Retention | None = None, **more: Any) -> Janitor:
    limit = Limit(capacity_bytes=capacity, min_free_fraction=0)
    return Janitor(Pool(root), Exchange(root, "janitor"), retention or Lru(), limit, clock=clock, **more)


def on_disk(root: str) -> int:
    return sum(found.file_bytes for found in Pool(root).scan())
