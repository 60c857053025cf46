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
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

from app.tiers.curvine.breaker import Breaker
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


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """For metrics and status."""

    workers: int
    lost: int
    queued: int
    late: int
    refused: int
    failed: int


class _Batch(Generic[T]):
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
        self._queue: queue.SimpleQueue[_Batch[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._due = threading.Condition(self._lock)
        self._heap: list[tuple[float, int, _Batch[Any]]] = []
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
        batch: _Batch[T] = _Batch(size, work, done, None if probing else trouble)
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

    def _finish(self, batch: _Batch[Any], *, late: bool) -> None:
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


class Prober:
    """Asks an open breaker's file system, in the background, whether it is back.

    `probe` blocks and raises OSError; it runs under `guard` with `deadline_s`, so a mount that still hangs costs one
    worker of the bounded number a time, and nothing once they are used up.
    """

    def __init__(self, breaker: Breaker, guard: Guard, probe: Callable[[], None], deadline_s: float = 1.0) -> None:
        self._breaker = breaker
        self._guard = guard
        self._probe = probe
        self._deadline_s = deadline_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="curvine-prober", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._breaker.tripped.wait()
            if self._stop.is_set():
                return
            if self._breaker.try_probe():
                self._breaker.probed(self._guard.call(self._ask, self._deadline_s, probing=True) is True)
            else:
                self._stop.wait(0.05)

    def _ask(self, _: Landing) -> bool:
        try:
            self._probe()
        except OSError as error:
            logger.info("the pool's file system is still failing: %s", error)
            return False
        return True

    def close(self) -> None:
        """Stops probing; waits for a probe under way, whose deadline bounds it."""
        self._stop.set()
        self._breaker.tripped.set()
        self._thread.join(self._deadline_s + 0.5)
