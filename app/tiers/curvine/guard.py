"""Deadlines around file I/O that may never return.

A thread inside a hung mount cannot be interrupted, only given up. The guard runs each call's pieces on worker threads;
when the deadline passes it answers for the pieces that are not done, takes the caller's memory away from whoever still
has it (see landing.py), and starts another worker in place of the lost one, up to a bound. A lost worker that comes
back finds its work void and either works on or goes.

    caller --submit--> queue --> worker: piece, piece, piece ... --last one--> done(outcomes)
                                   `--stuck--> lost               reaper --deadline--> done(outcomes with LATE)
"""

import contextlib
import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from app.tiers.curvine.batch import Batch, Missed, Outcome, Work
from app.tiers.curvine.breaker import Breaker
from app.tiers.curvine.landing import Landing

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """For metrics and status."""

    workers: int
    lost: int
    queued: int
    late: int
    refused: int
    failed: int


class Guard:
    """Runs pieces of blocking work with a deadline for the whole call.

    Any thread may call. `submit` never blocks; `done` runs once, on a worker, on the reaper, or, for what is refused,
    on the caller's thread, and must neither block nor raise. At most `workers + max_lost` threads ever exist beside
    the reaper. `trouble` (see `submit`), a late or failed piece, and a step slower than `slow_s` count as a failure for
    the breaker; a piece is one step unless it says more (`Landing.step`).
    """

    def __init__(
        self,
        name: str,
        breaker: Breaker,
        *,
        workers: int = 4,
        max_lost: int = 16,
        slow_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._breaker = breaker
        self._target = workers
        self._max_lost = max_lost
        self._slow_s = slow_s
        self._clock = clock
        self._queue: queue.SimpleQueue[Batch[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._due = threading.Condition(self._lock)
        self._heap: list[tuple[float, int, Batch[Any]]] = []
        self._serial = itertools.count()
        self._working: set[threading.Thread] = set()
        self._lost: set[threading.Thread] = set()
        self._closed = False
        self._late = self._refused = self._failed = 0
        with self._lock:
            self._hire()
        self._reaper = threading.Thread(target=self._reap, name=f"{name}-reaper", daemon=True)
        self._reaper.start()

    # -- calls ----------------------------------------------------------------------------------------------------

    def submit(
        self,
        size: int,
        work: Work[T],
        deadline_s: float,
        done: Callable[[list[Outcome[T]]], None],
        *,
        trouble: Callable[[T], bool] | None = None,
        probing: bool = False,
    ) -> None:
        """Calls `work(index, landing)` for every index below `size`, several at a time, and `done` with the outcomes in
        order no later than `deadline_s` from now. `trouble` tells the results that speak against the file system.
        `probing` passes an open breaker and does not report to it."""
        batch: Batch[T] = Batch(size, work, done, None if probing else trouble)
        if size == 0:
            done([])
            return
        with self._lock:
            refuse = self._closed or not self._working or not (probing or self._breaker.allows())
            if refuse:
                self._refused += size
            else:
                due = self._clock() + deadline_s
                heapq.heappush(self._heap, (due, next(self._serial), batch))
                if self._heap[0][2] is batch:
                    self._due.notify()
                helpers = min(size, len(self._working))
        if refuse:
            done([Missed.REFUSED] * size)
            return
        for _ in range(helpers):
            self._queue.put(batch)

    def call(self, work: Callable[[Landing], T], deadline_s: float, *, probing: bool = False) -> Outcome[T]:
        """`submit` for one piece, blocking the caller until it is done or late."""
        answers: list[Outcome[T]] = []
        ready = threading.Event()

        def done(outcomes: list[Outcome[T]]) -> None:
            answers.extend(outcomes)
            ready.set()

        trouble: Callable[[T], bool] = lambda _: False  # noqa: E731
        self.submit(1, lambda _, landing: work(landing), deadline_s, done, trouble=trouble, probing=probing)
        ready.wait()  # the reaper answers if nobody else does
        return answers[0]

    # -- workers --------------------------------------------------------------------------------------------------

    def _hire(self) -> None:
        """Brings the number of working threads back to the target, as far as the bound allows. Lock held."""
        while (
            len(self._working) < self._target and len(self._working) + len(self._lost) < self._target + self._max_lost
        ):
            thread = threading.Thread(target=self._serve, name=f"{self._name}-{next(self._serial)}", daemon=True)
            self._working.add(thread)
            thread.start()

    def _serve(self) -> None:
        me = threading.current_thread()
        while (batch := self._queue.get()) is not None:
            if batch.run(me, self._clock):
                self._finish(batch, late=False)
            del batch
            if self._lost and not self._stays(me):
                return
        with self._lock:
            self._working.discard(me)

    def _stays(self, me: threading.Thread) -> bool:
        """Whether a worker goes on: one that was lost and has been replaced does not."""
        with self._lock:
            if me not in self._lost:
                return True
            self._lost.discard(me)
            if self._closed or len(self._working) >= self._target:
                return False
            self._working.add(me)
            return True

    def _reap(self) -> None:
        while True:
            with self._lock:
                while not self._closed and (not self._heap or self._heap[0][0] > self._clock()):
                    # A finished batch at the top would only wake us for nothing.
                    if self._heap and self._heap[0][2].finished:
                        heapq.heappop(self._heap)
                        continue
                    self._due.wait(self._heap[0][0] - self._clock() if self._heap else None)
                if not self._heap:
                    return
                batch = heapq.heappop(self._heap)[2]
            stuck = batch.expire()
            if stuck is None:
                continue
            with self._lock:
                for thread in stuck:
                    if thread in self._working:
                        self._working.discard(thread)
                        self._lost.add(thread)
                if not self._closed:
                    self._hire()
            self._finish(batch, late=True)

    def _finish(self, batch: Batch[Any], *, late: bool) -> None:
        results, done, trouble = batch.results, batch.done, batch.trouble
        longest = batch.longest_s
        batch.release()
        if trouble is not None:
            self._judge(results, trouble, late, longest)
        try:
            done(results)
        except Exception:
            logger.exception("the continuation of a guarded call failed")

    def _judge(
        self, results: Sequence[object], trouble: Callable[[object], bool], late: bool, longest_s: float
    ) -> None:
        if late:
            count = sum(result is Missed.LATE for result in results)
            with self._lock:
                self._late += count
            self._breaker.failed(self._name, f"{count} of {len(results)} late")
            return
        if Missed.FAILED in results:
            with self._lock:
                self._failed += sum(result is Missed.FAILED for result in results)
            self._breaker.failed(self._name, "failed")
        elif any(map(trouble, results)):
            self._breaker.failed(self._name, "the file system returned an error")
        elif longest_s > self._slow_s:
            self._breaker.failed(self._name, f"a call took {longest_s:.1f} s")
        else:
            self._breaker.succeeded(self._name)

    # -- end and status -------------------------------------------------------------------------------------------

    def close(self, wait_s: float = 1.0) -> None:
        """Refuses further calls, answers the waiting ones as late, and waits at most `wait_s` for workers that are not
        stuck. Idempotent."""
        with self._lock:
            self._closed = True
            workers = list(self._working)
            self._due.notify()
        for _ in workers:
            self._queue.put(None)
        until = self._clock() + wait_s
        with contextlib.suppress(RuntimeError):
            self._reaper.join(wait_s)
        for worker in workers:
            if worker is not threading.current_thread():
                worker.join(max(0.0, until - self._clock()))

    def status(self) -> GuardStatus:
        with self._lock:
            return GuardStatus(
                workers=len(self._working),
                lost=len(self._lost),
                queued=self._queue.qsize(),
                late=self._late,
                refused=self._refused,
                failed=self._failed,
            )

    def check_integrity(self) -> None:
        """Raises AssertionError if a thread is counted twice, or there are more than the bound allows."""
        with self._lock:
            assert not self._working & self._lost, self._working & self._lost
            total = len(self._working) + len(self._lost)
            assert total <= self._target + self._max_lost, (total, self._target, self._max_lost)
            assert self._closed or self._reaper.is_alive()
