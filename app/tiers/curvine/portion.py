"""Some of one call's chunks, worked off by several workers.

    worker 1: lead -> name, name, ... read, read, ...        names are made in one go, while the code for it is in the
    worker 2:           help -> read, read, read, ...        processor's caches; the others begin meanwhile

Compiled code takes chunk after chunk as long as nothing is in its way (fused.py). Whatever is not so simple is looked
at by hand, as is everything where there is no compiled code.
"""

import contextlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from app.tiers.curvine.fused_layout import MOST_ROWS, Answer
from app.tiers.curvine.fused_table import Taken
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.landing import AbandonedError, Landing

MOST: Final = MOST_ROWS
"""Chunks of one portion: longer calls have several."""
# Whoever prepares never waits for a file system, but may have been given up before it began.
_LOOK_EVERY_S: Final = 0.05

Wanted = TypeVar("Wanted", contravariant=True)
Row = TypeVar("Row")


class Table(Protocol):
    """What a `FusedTable` is to its workers."""

    def add(
        self, chunk: ChunkId, payload: memoryview, path: str, temporary: str = "", identity: bytes | None = None
    ) -> None: ...
    def close(self) -> None: ...
    def gather(self) -> None: ...
    def take(self, landing: Landing, worker: int) -> Taken | None: ...
    def finished(self, worker: int) -> Sequence[tuple[int, Answer]]: ...
    def rest(self) -> Sequence[int]: ...


class PlainTable:
    """A table whose every row is done by hand, one by one."""

    def __init__(self) -> None:
        self._count = self._next = 0
        self._closed = False
        self._changed = threading.Condition()

    def add(
        self, chunk: ChunkId, payload: memoryview, path: str, temporary: str = "", identity: bytes | None = None
    ) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def gather(self) -> None:
        """Opening the first file lets go of the interpreter early enough."""

    def take(self, landing: Landing, worker: int) -> Taken | None:
        with self._changed:
            while self._next == self._count and not self._closed:
                landing.check()
                self._changed.wait(_LOOK_EVERY_S)
            landing.check()
            if self._next == self._count:
                return None
            self._next += 1
            return Taken(self._next - 1, Answer.UNFIT, None)

    def finished(self, worker: int) -> Sequence[tuple[int, Answer]]:
        return ()

    def rest(self) -> Sequence[int]:
        with self._changed:
            rows = range(self._next, self._count)
            self._next = self._count
            return rows


class Portion(ABC, Generic[Wanted, Row]):
    """At most `MOST` chunks. One worker calls `lead`, any number `help`. Both do what nobody else has taken yet; each
    row is given to one caller, done. They block for as long as the file system pleases and raise nothing for what it
    does."""

    def __init__(self, table: Table, *, helped: bool) -> None:
        """`helped`: there will be workers besides the leader."""
        self._table = table
        self._helped = helped
        self._rows: list[Row] = []
        self._workers = itertools.count(1)

    def lead(self, wanted: Iterable[Wanted], landing: Landing) -> Iterator[Row]:
        """Says what the portion's chunks are, and works. Raises what `wanted` does."""
        worker = next(self._workers)
        if self._helped:
            self._table.gather()
        try:
            for one in wanted:
                self._add(one)
        except BaseException:
            self._give_up()
            raise
        finally:
            self._table.close()
        yield from self._work(landing, worker)
        yield from self._finished(worker)
        if landing.revoked:
            yield from self._give_up()

    def help(self, landing: Landing) -> Iterator[Row]:
        worker = next(self._workers)
        yield from self._work(landing, worker)
        yield from self._finished(worker)

    def _work(self, landing: Landing, worker: int) -> Iterator[Row]:
        """What needs help."""
        with contextlib.suppress(AbandonedError):
            while (taken := self._table.take(landing, worker)) is not None:
                yield from self._looked_at(self._rows[taken.row], taken, landing)

    def _finished(self, worker: int) -> Iterator[Row]:
        """What did not."""
        for row, answer in self._table.finished(worker):
            yield self._done(self._rows[row], answer)

    def _give_up(self) -> list[Row]:
        """What nobody has taken."""
        return [self._abandoned(self._rows[row]) for row in self._table.rest()]

    @abstractmethod
    def _add(self, wanted: Wanted) -> None:
        """Adds a row to `_rows` and to the table. Must not block."""

    @abstractmethod
    def _looked_at(self, row: Row, taken: Taken, landing: Landing) -> Iterator[Row]:
        """Does by hand what is left of a row, and yields it with what became of it."""

    @abstractmethod
    def _done(self, row: Row, answer: Answer) -> Row:
        """A row that compiled code has done, `DONE` or `EXISTS`."""

    @abstractmethod
    def _abandoned(self, row: Row) -> Row:
        """A row that nobody has begun, and nobody will."""
