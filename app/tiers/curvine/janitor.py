"""Keeps a pool at or below its limit, for all the servers that write to it.

One janitor a pool, made so by whoever runs it: a lease file, or a singleton of the cluster. A tick takes everybody's
reports, looks at the room that is left, evicts what is worth least, hands out credit for what may be stored until the
next tick, and says so. A server that dies keeps its credit until the janitor has scanned the disk for what it did with
it.

    0 ........... low ............ high ..... capacity
                   ^-- evicted to --|          `-- room between high and capacity: the credit that may be out
"""

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from app.tiers.curvine.exchange import Exchange, Received, Status
from app.tiers.curvine.ledger import Ledger
from app.tiers.curvine.pool import Pool
from app.tiers.curvine.retention import Entry, Retention, Worth

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limit:
    """`capacity_bytes` 0: only the file system's room counts."""

    capacity_bytes: int = 0
    min_free_fraction: float = 0.05
    high: float = 0.95
    low: float = 0.85


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick did."""

    used_bytes: int
    files: int
    evicted: tuple[Entry, ...]
    writers: int


@dataclass(slots=True)
class _Writer:
    granted: int = 0
    settled: int = 0  # what it has reported as stored
    heard: float = 0.0
    held: tuple[str, ...] = ()

    @property
    def out(self) -> int:
        """Credit that may have become files we do not know of."""
        return max(0, self.granted - self.settled)


class Janitor:
    """One thread calls; every method blocks on the file system and may raise OSError, after which the next tick goes
    on.

    `clock` is wall-clock seconds, because the ledger outlives the process; `spare` names what must stay, beside what
    the reports say is being read. `worth` is taught what the reports say, for a `retention` that asks it.
    """

    def __init__(
        self,
        pool: Pool,
        exchange: Exchange,
        retention: Retention,
        limit: Limit,
        *,
        clock: Callable[[], float] = time.time,
        spare: Callable[[], Collection[str]] = tuple,
        rescan_s: float = 900.0,
        save_s: float = 60.0,
        writer_ttl_s: float = 15.0,
        worth: Worth | None = None,
    ) -> None:
        self._pool = pool
        self._exchange = exchange
        self._limit = limit
        self._clock = clock
        self._spare = spare
        self._rescan_s = rescan_s
        self._save_s = save_s
        self._writer_ttl_s = writer_ttl_s
        self._worth = worth or Worth()
        self._writers: dict[str, _Writer] = {}
        self._ticks = 0
        self._largest = 0
        self._scanned_at: float | None = None
        self._saved_at = 0.0
        self.ledger = Ledger(retention)

    def tick(self) -> Tick:
        """Once a second or so."""
        now = self._clock()
        self._exchange.open()
        if self._scanned_at is None:
            self._take_over()
        # The reports first: a file stored and reported before the scan must not be missing from both.
        received = self._exchange.receive()
        if self._scanned_at is None or now - self._scanned_at >= self._rescan_s or self._bury(now):
            self._scan(now)
        for item in received:
            self._count(item, now)
        evicted = self._evict(now)
        self._grant()
        self._ticks += 1
        self._exchange.publish(
            Status(
                owner=self._exchange.writer,
                tick=self._ticks,
                used_bytes=self.ledger.bytes,
                files=len(self.ledger),
                capacity_bytes=self._limit.capacity_bytes,
                grants={name: writer.granted for name, writer in self._writers.items()},
                settled={name: writer.settled for name, writer in self._writers.items()},
                worth=self._worth.known,
            )
        )
        if now - self._saved_at >= self._save_s:
            self.save()
        return Tick(self.ledger.bytes, len(self.ledger), tuple(evicted), len(self._writers))

    def save(self) -> None:
        """Leaves the ledger to whoever is the next janitor."""
        self.ledger.save(self._exchange.ledger_path)
        self._saved_at = self._clock()

    def _take_over(self) -> None:
        """A new janitor honours what its predecessor has handed out."""
        self.ledger.load(self._exchange.ledger_path)
        status = self._exchange.status()
        if status is not None:
            self._worth.learn(status.worth)
            for name, granted in status.grants.items():
                settled = status.settled.get(name, 0)
                self._writers[name] = _Writer(granted=granted, settled=settled, heard=self._clock())
        self._saved_at = self._clock()

    def _scan(self, now: float) -> None:
        self.ledger.reconcile(self._pool.scan(), now)
        self._scanned_at = now

    def _bury(self, now: float) -> bool:
        """Forgets writers that have been silent for too long; whether there were any."""
        silent = [name for name, writer in self._writers.items() if now - writer.heard > self._writer_ttl_s]
        for name in silent:
            del self._writers[name]
        return bool(silent)

    def _count(self, item: Received, now: float) -> None:
        # One we do not know, or no longer: what it has stored so far was paid for in another life.
        writer = self._writers.setdefault(item.writer, _Writer(granted=item.report.stored_total))
        writer.heard = now
        writer.held = item.report.held
        writer.settled = max(writer.settled, item.report.stored_total)
        ledger, report = self.ledger, item.report
        self._largest = max(self._largest, report.largest)
        self._worth.learn(report.worth)
        for stored in report.stored:
            family, _, digest = stored.name.partition("/")
            ledger.stored(family, digest, stored.file_bytes, stored.depth, now)
        for name, times in report.used.items():
            ledger.used(name, times, now)
        for name, depth in report.placed.items():
            ledger.placed(name, depth)
        for name in report.dropped:
            ledger.gone(name)

    # -- eviction -------------------------------------------------------------------------------------------------

    def _evict(self, now: float) -> list[Entry]:
        want = self._excess()
        if want <= 0:
            return []
        spare = {name for writer in self._writers.values() for name in writer.held} | set(self._spare())
        evicted = [entry for entry in self.ledger.victims(want, now, spare) if self._remove(entry)]
        if evicted:
            self._exchange.announce([entry.name for entry in evicted])
            logger.info("evicted %d chunks, %d bytes", len(evicted), sum(entry.file_bytes for entry in evicted))
        return evicted

    def _remove(self, entry: Entry) -> bool:
        """True if the file is gone. One that will not go stays in the ledger: it still takes room."""
        if self._pool.drop_file(entry.family, entry.digest) is None and self._pool.exists_file(
            entry.family, entry.digest
        ):
            return False
        self.ledger.gone(entry.name)
        return True

    def _excess(self) -> int:
        """Bytes to free now."""
        limit, used = self._limit, self.ledger.bytes
        excess = 0
        capacity = limit.capacity_bytes
        if capacity:
            room = capacity - len(self._writers) * self._share()
            if used > min(limit.high * capacity, room):
                excess = used - int(min(limit.low * capacity, room))
        if limit.min_free_fraction:
            disk = self._pool.room()
            need = int(limit.min_free_fraction * disk.total_bytes)
            if disk.free_bytes < need:
                # A tenth more than needed, so as not to be back at once.
                excess = max(excess, need + need // 10 - disk.free_bytes)
        return min(excess, used)

    # -- credit ---------------------------------------------------------------------------------------------------

    def _share(self) -> int:
        """The credit that one writer may have out: its part of the room above the high watermark, but no less than two
        of the largest files, for less than one is nothing; all together no more than half of the pool."""
        if not self._writers:
            return 0
        capacity, count = self._limit.capacity_bytes, len(self._writers)
        return min(max(int((1 - self._limit.high) * capacity) // count, 2 * self._largest), capacity // (2 * count))

    def _grant(self) -> None:
        """Tops everybody up to a share, as far as there is room."""
        capacity = self._limit.capacity_bytes
        if not capacity or not self._writers:
            return
        share = self._share()
        left = capacity - self.ledger.bytes - sum(writer.out for writer in self._writers.values())
        for writer in self._writers.values():
            more = min(max(0, share - writer.out), max(0, left))
            writer.granted += more
            left -= more

    def check_integrity(self) -> None:
        """Raises AssertionError if files and credit together exceed the capacity, or the ledger is inconsistent."""
        self.ledger.check_integrity()
        out = sum(writer.out for writer in self._writers.values())
        capacity = self._limit.capacity_bytes
        if capacity and self.ledger.bytes <= capacity:
            assert self.ledger.bytes + out <= capacity, (self.ledger.bytes, out, capacity)
        for name, writer in self._writers.items():
            assert name, writer
            assert writer.granted >= 0, (name, writer)
