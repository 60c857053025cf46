"""One guarded call's pieces (guard.py): workers take them, the reaper gives up those that are late."""

import itertools
import logging
import threading
from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

from app.tiers.curvine.landing import Landing

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Missed(Enum):
    """Why a piece has no result of its own."""

    LATE = "late"  # the deadline passed first
    REFUSED = "refused"  # the breaker is open, the guard is closed, or every worker is lost
    FAILED = "failed"  # the piece raised


Outcome: TypeAlias = T | Missed
Work: TypeAlias = Callable[[int, Landing], T]


class Batch(Generic[T]):
    """One call's pieces. Workers take indices one after another, so a piece costs no queue operation and no lock."""

    __slots__ = (
        "_landings", "_left", "_lock", "_next", "_work", "done", "finished", "longest_s", "results", "size", "trouble",
    )  # fmt: skip

    def __init__(
        self, size: int, work: Work[T], done: Callable[[list[Outcome[T]]], None], trouble: Callable[[T], bool] | None
    ) -> None:
        self.size = size
        self.done = done
        self.trouble = trouble
        self.results: list[Outcome[T]] = [Missed.LATE] * size
        self.finished = False
        self.longest_s = 0.0
        self._work: Work[T] | None = work
        self._next = itertools.count()
        self._left = size
        self._lock = threading.Lock()
        self._landings: dict[threading.Thread, Landing] = {}

    def run(self, me: threading.Thread, clock: Callable[[], float]) -> bool:
        """On a worker: takes pieces until there are none. True if this worker finished the last one."""
        landing = Landing(clock)
        with self._lock:
            work = self._work
            if self.finished or work is None:
                return False
            self._landings[me] = landing
            results = self.results  # this very list: after the deadline the batch has another one
        count = 0
        for index in self._next:
            if index >= self.size or landing.revoked:
                break
            try:
                results[index] = work(index, landing)
            except Exception:
                logger.exception("a guarded piece of work failed")
                results[index] = Missed.FAILED
            count += 1
            landing.step()
        with self._lock:
            self._landings.pop(me, None)
            self.longest_s = max(self.longest_s, landing.longest_s)
            self._left -= count
            if self.finished or self._left:
                return False
            self.finished = True
            return True

    def expire(self) -> list[threading.Thread] | None:
        """At the deadline: None if the batch is finished, else the workers still in it; nobody then touches the
        memory."""
        with self._lock:
            if self.finished:
                return None
            self.finished = True
            landings = dict(self._landings)
        for landing in landings.values():
            landing.revoke()
        self.results = list(self.results)  # a worker that comes back writes into the old list
        return list(landings)

    def release(self) -> None:
        """Forgets everything that belongs to the caller; the shell may wait in the reaper's heap for its deadline."""
        self._work = None
        self.results = []
        del self.done
