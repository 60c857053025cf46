"""The background thread of a server's pool: reports, listens, and is the janitor if it is its turn.

It touches the mount outside the guard, on a thread that nobody waits for: if the mount hangs, this one thread hangs
with it, stores go on until their credit is used up, and everything resumes when the mount does.
"""

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from app.tiers.curvine.credit import Credit
from app.tiers.curvine.exchange import Exchange, Status
from app.tiers.curvine.janitor import Janitor, Limit
from app.tiers.curvine.lease import Lease
from app.tiers.curvine.pool import Pool
from app.tiers.curvine.retention import Worth, policy
from app.tiers.curvine.settings import PoolSettings
from app.tiers.curvine.usage import Usage

logger = logging.getLogger(__name__)

_HEARTBEAT_TICKS = 3
_EAGER_TICKS = 50
_EAGER_S = 0.1
_SWEEP_TICKS = 60
_ORPHAN_S = 600.0


@dataclass(frozen=True, slots=True)
class HousekeeperStatus:
    """For metrics and status."""

    is_janitor: bool
    alive: bool
    ticks: int
    failed_ticks: int
    used_bytes: int | None
    """Of the whole pool, whoever wrote it; None until a janitor has spoken."""
    capacity_bytes: int
    credit_refused: int


class Housekeeper:
    """`held` names what is being read here; `on_evicted` is told, on the housekeeping thread, what anybody's janitor
    evicted; `on_start` runs once on a thread of its own."""

    def __init__(
        self,
        pool: Pool,
        settings: PoolSettings,
        usage: Usage,
        credit: Credit,
        *,
        held: Callable[[], Collection[str]] = tuple,
        on_evicted: Callable[[list[str]], None] = lambda names: None,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._usage = usage
        self._credit = credit
        self._held = held
        self._on_evicted = on_evicted
        self._on_start = on_start
        self._exchange = exchange = Exchange(pool.root, pool.writer)
        self._lease = Lease(
            exchange.lease_path, exchange.writer, pool.filesystem_time, ttl_s=max(10.0, 10 * settings.tick_s)
        )
        self._limit = Limit(
            capacity_bytes=settings.capacity_bytes,
            min_free_fraction=settings.min_free_fraction,
            high=settings.high_watermark,
            low=settings.low_watermark,
        )
        self._janitor: Janitor | None = None
        self._status: Status | None = None
        self._ticks = self._failed = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="curvine-housekeeper", daemon=True)
        self._starter = threading.Thread(target=self._begin, name="curvine-recovery", daemon=True)

    def start(self) -> None:
        """Starts the two threads: housekeeping, and `on_start`, which may take long. Reads one small file first, so
        that a limit set by another server holds here from the first store on.
        """
        try:
            status = self._exchange.status()
        except OSError as error:
            logger.warning("could not read what the pool's janitor says: %s", error)
        else:
            if status is not None and status.capacity_bytes:
                self._credit.grant(status.grants.get(self._exchange.writer, 0))
        self._thread.start()
        self._starter.start()

    def _begin(self) -> None:
        try:
            self._on_start()
        except OSError as error:
            logger.warning("could not read all of the pool at the start: %s", error)
        except Exception:
            logger.exception("could not read all of the pool at the start")

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.tick()
            except OSError as error:
                self._failed += 1
                logger.warning("the pool's housekeeping failed, will try again: %s", error)
            except Exception:
                self._failed += 1
                logger.exception("the pool's housekeeping failed, will try again")
            self._stop.wait(self._pause_s())
        self._leave()

    def _pause_s(self) -> float:
        """Until the next tick. A new server listens closely until a janitor has given it its first credit."""
        status = self._status
        heard = status is not None and (not status.capacity_bytes or self._exchange.writer in status.grants)
        return self._settings.tick_s if heard or self._ticks > _EAGER_TICKS else min(_EAGER_S, self._settings.tick_s)

    def tick(self) -> None:
        """One round. Blocks on the file system; may raise OSError."""
        self._exchange.open()
        report = self._usage.drain(self._held(), self._credit.largest)
        if not report.empty or self._ticks % _HEARTBEAT_TICKS == 0:
            self._exchange.send(report)
        self._ticks += 1
        if self._settings.janitor == "lease" and self._lease.hold():
            self._clean()
        else:
            self._janitor = None
        self._listen()

    def _clean(self) -> None:
        if self._janitor is None:
            worth = Worth()
            retention = policy(self._settings.retention, worth)
            self._janitor = Janitor(self._pool, self._exchange, retention, self._limit, spare=self._held, worth=worth)
        self._janitor.tick()
        if self._ticks % _SWEEP_TICKS == 1:
            self._pool.sweep(_ORPHAN_S)

    def _listen(self) -> None:
        self._status = status = self._exchange.status()
        if status is not None and status.capacity_bytes:
            self._credit.grant(status.grants.get(self._exchange.writer, 0))
        elif not self._settings.capacity_bytes:
            self._credit.grant(None)
        names = self._exchange.evictions()
        if names:
            self._on_evicted(names)

    def _leave(self) -> None:
        try:
            if self._janitor is not None:
                self._janitor.save()
            if self._settings.janitor == "lease":
                self._lease.release()
        except OSError as error:
            logger.warning("the pool's housekeeping ended with %s", error)

    def close(self, wait_s: float = 2.0) -> None:
        """Hands over to the next janitor; waits at most `wait_s` for a thread that may hang. Idempotent."""
        self._stop.set()
        for thread in (self._thread, self._starter):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(wait_s)

    def status(self) -> HousekeeperStatus:
        """Does not touch the file system."""
        status = self._status
        return HousekeeperStatus(
            is_janitor=self._janitor is not None,
            alive=self._thread.is_alive(),
            ticks=self._ticks,
            failed_ticks=self._failed,
            used_bytes=None if status is None else status.used_bytes,
            capacity_bytes=self._settings.capacity_bytes if status is None else status.capacity_bytes,
            credit_refused=self._credit.refused,
        )
