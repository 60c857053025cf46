"""The pool behind its guards: what may be called from a thread that must not wait.

Three lanes, so that a lookup does not queue behind a gigabyte of loads, nor a load behind stores; one breaker for all
of them, because they ask the same mount. While it is open stores are dropped and lookups are misses.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar

from app.tiers.curvine import fused
from app.tiers.curvine.batch import Missed
from app.tiers.curvine.breaker import Breaker
from app.tiers.curvine.directory import Dropped
from app.tiers.curvine.guard import Guard
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.outcomes import Get, Put
from app.tiers.curvine.pool import Pool
from app.tiers.curvine.portions import Portions
from app.tiers.curvine.prober import Prober

T = TypeVar("T")

# Lookups are cut into runs: long enough that a hand-over costs little, short enough that a slow mount is asked in
# parallel.
_LOOKUP_RUN = 64
# So many are first looked for on the caller's own thread, in the kernel's memory: hardly longer than the hand-over to a
# worker would take it.
_AT_ONCE = 16

# Many more threads than cores only fight for the interpreter; a mount, and a busy machine, want more than two.
DEFAULT_WORKERS = max(3, min(8, os.cpu_count() or 3))


def _troubled(outcomes: Sequence[tuple[int, Get]]) -> bool:
    return any(got is Get.ERROR for _, got in outcomes)


class Payloads(Protocol):
    """Chunks and their memory by index; a list of pairs is one. Called on workers, several at once."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[ChunkId, memoryview]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines in seconds, from submission to answer, and thread counts."""

    lookup_s: float = 1.0
    load_s: float = 5.0
    store_s: float = 20.0
    drop_s: float = 2.0
    slow_s: float = 2.0
    failures: int = 3
    rest_s: float = 1.0
    read_workers: int = DEFAULT_WORKERS
    write_workers: int = DEFAULT_WORKERS
    meta_workers: int = 2
    max_lost: int = 8


class PoolService:
    """Asynchronous `store`, `load`, `lookup`; synchronous `drop`. Any thread may call; nothing raises for what a file
    system does; nothing outlasts its deadline. Continuations run on a worker, the reaper or the caller's own thread."""

    def __init__(
        self, pool: Pool, limits: Limits | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        fused.fused_files()  # compiled now, not beside the first load
        self.pool = pool
        self.limits = limits = limits or Limits()
        self.breaker = Breaker(threshold=limits.failures, rest_s=limits.rest_s, clock=clock)
        self._reads = self._guard("curvine-read", limits.read_workers, clock)
        self._writes = self._guard("curvine-write", limits.write_workers, clock)
        self._meta = self._guard("curvine-meta", limits.meta_workers, clock)
        self._probes = self._guard("curvine-probe", 1, clock)
        self._prober = Prober(self.breaker, self._probes, pool.probe, limits.lookup_s)

    def _guard(self, name: str, workers: int, clock: Callable[[], float]) -> Guard:
        limits = self.limits
        return Guard(name, self.breaker, workers=workers, max_lost=limits.max_lost, slow_s=limits.slow_s, clock=clock)

    def store(self, chunks: Payloads, done: Callable[[list[Put]], None]) -> None:
        """Stores chunks; their memory is read until `done`."""
        outcomes = dict.fromkeys(range(len(chunks)), Put.FAILED)
        portions = Portions(len(chunks), self.limits.write_workers, self.pool.store)

        def work(piece: int, landing: Landing) -> None:
            share = portions.share(piece)
            given = ((at, *chunks[at]) for at in share.chunks) if share.leads else None
            self.pool.write(share.portion, landing, outcomes.update, given)

        def finish(_: list[Missed | None]) -> None:
            done(list(outcomes.values()))

        trouble: Callable[[None], bool] = lambda _: Put.FAILED in outcomes.values()  # noqa: E731
        self._writes.submit(portions.pieces, work, self.limits.store_s, finish, trouble=trouble)

    def load(self, chunks: Payloads, done: Callable[[list[bool]], None]) -> None:
        """Loads chunks; their memory is written until `done`, and holds the chunk where the answer is True."""
        portions = Portions(len(chunks), self.limits.read_workers, self.pool.load)

        def work(piece: int, landing: Landing) -> list[tuple[int, Get]]:
            share = portions.share(piece)
            wanted = (chunks[at] for at in share.chunks) if share.leads else None
            return [(share.chunks.start + at, got) for at, got in self.pool.read(share.portion, landing, wanted)]

        def finish(outcomes: list[list[tuple[int, Get]] | Missed]) -> None:
            loaded = [False] * len(chunks)
            for outcome in outcomes:
                for at, got in outcome if isinstance(outcome, list) else ():
                    loaded[at] = got is Get.HIT
            done(loaded)

        self._reads.submit(portions.pieces, work, self.limits.load_s, finish, trouble=_troubled)

    def lookup(
        self, chunks: Sequence[ChunkId], sizes: Sequence[int | None], done: Callable[[list[bool]], None]
    ) -> None:
        """Which chunks are there, with the payload sizes that are known."""
        if len(chunks) <= _AT_ONCE and self.breaker.allows():
            known = self.pool.has_at_once(chunks, sizes)
            if known is not None:
                done(known)
                return
        runs = range(0, len(chunks), _LOOKUP_RUN)

        def work(index: int, _: Landing) -> list[bool] | None:
            start = runs[index]
            try:
                return self.pool.has_many(chunks[start : start + _LOOKUP_RUN], sizes[start : start + _LOOKUP_RUN])
            except OSError:
                return None

        def finish(outcomes: list[list[bool] | Missed | None]) -> None:
            found: list[bool] = []
            for start, outcome in zip(runs, outcomes, strict=True):
                run = min(_LOOKUP_RUN, len(chunks) - start)
                found += outcome if isinstance(outcome, list) else [False] * run
            done(found)

        self._meta.submit(len(runs), work, self.limits.lookup_s, finish, trouble=lambda found: found is None)

    def drop(self, chunks: Sequence[ChunkId]) -> list[Dropped | None]:
        """Removes chunks. Blocks, at most for the deadline; what was not reached in time counts as still there."""
        answers: list[Dropped | None] = []
        ready = threading.Event()

        def finish(outcomes: list[Dropped | Missed | None]) -> None:
            answers.extend(None if isinstance(outcome, Missed) else outcome for outcome in outcomes)
            ready.set()

        self._meta.submit(
            len(chunks),
            lambda index, _: self.pool.drop(chunks[index]),
            self.limits.drop_s,
            finish,
            trouble=lambda _: False,
        )
        ready.wait()
        return answers

    def ask(self, work: Callable[[], T], default: T, deadline_s: float | None = None) -> T:
        """Anything else that touches the mount, under the metadata lane's rules: `default` if it fails or is late."""

        def attempt(_: Landing) -> T:
            try:
                return work()
            except OSError:
                return default

        answer = self._meta.call(attempt, self.limits.drop_s if deadline_s is None else deadline_s)
        return default if isinstance(answer, Missed) else answer

    def status(self) -> dict[str, object]:
        """Plain values, for metrics and `report_status`. Does not touch the file system."""
        breaker = self.breaker.status()
        return {
            "breaker": {**asdict(breaker), "state": breaker.state.value},
            "lanes": {
                "read": asdict(self._reads.status()),
                "write": asdict(self._writes.status()),
                "meta": asdict(self._meta.status()),
                "probe": asdict(self._probes.status()),
            },
            "pool": asdict(self.pool.stats()),
            "full": self.pool.pausing(),
        }

    def close(self) -> None:
        """Answers what is waiting and stops the threads that can be stopped. Bounded; idempotent."""
        with contextlib.suppress(RuntimeError):
            self._prober.close()
        for guard in (self._reads, self._writes, self._meta, self._probes):
            guard.close()

    def check_integrity(self) -> None:
        """Raises AssertionError if a part contradicts itself."""
        self.breaker.check_integrity()
        for guard in (self._reads, self._writes, self._meta, self._probes):
            guard.check_integrity()
