"""A table of files that are to be read or written, which several workers take row by row in compiled code."""

import os
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from app.tiers.curvine import chunkfile
from app.tiers.curvine import fused_layout as at
from app.tiers.curvine.address import address_of
from app.tiers.curvine.fused_layout import HEADER, MOST_ROWS, NUMBER_BYTES, ROW, Answer
from app.tiers.curvine.fused_memory import NAMES_ROOM, Cast, Memories
from app.tiers.curvine.fused_take import Loop
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.landing import Landing

_ASKED: Final = struct.Struct("9q")
_DONE, _EXISTS = Answer.DONE, Answer.EXISTS  # looking them up in their class takes a tenth of a microsecond


class Opened(NamedTuple):
    """A file that is open for reading."""

    fd: int
    size: int
    inode: int
    device: int


class Taken(NamedTuple):
    """A row that needs more than compiled code does. `file`: open, or what the file system said; None where it has not
    been asked."""

    row: int
    answer: Answer
    file: Opened | OSError | None


class FusedTable:
    """At most `MOST_ROWS` files, for several workers. One thread calls `add` and `close`, any `take`, `finished` and
    `rest`; whoever is in `take` keeps the table and the payloads alive."""

    def __init__(self, memories: Memories, loop: Loop, option: int) -> None:
        """`option` is what `fused_layout.OPTION` says of it."""
        self._memories = memories
        self._library = memories.library
        self._loop = loop
        self._memory = memory = memories.take()
        self._cast: Cast | None = None
        self._casts: list[Cast] = []  # which the rows point to
        self._count = 0
        numbers = memory.numbers
        numbers[at.NEXT] = numbers[at.READY] = numbers[at.CLOSED] = numbers[at.JOINED] = 0
        numbers[at.OPTION] = option

    def __del__(self) -> None:
        self._memories.give_back(self._memory)

    def add(
        self, chunk: ChunkId, payload: memoryview, path: str, temporary: str = "", identity: bytes | None = None
    ) -> None:
        """The next row; workers may take it at once. Its `identity_of` is asked for if it is not given."""
        memory, count = self._memory, self._count
        assert count < MOST_ROWS, count
        path_bytes, temporary_bytes = os.fsencode(path), os.fsencode(temporary)
        identity = identity or chunkfile.identity_of(chunk)
        cast = self._cast
        if cast is None or not cast.serves(chunk.family, len(payload), len(identity)):
            cast = self._cast = self._memories.cast(chunk, len(payload), len(identity))
            self._casts.append(cast)
        names = b"%b\0%b\0%b" % (path_bytes, temporary_bytes, identity[cast.stamp_at :])
        place, fits = count * NAMES_ROOM, len(names) <= NAMES_ROOM
        if fits:
            memory.names[place : place + len(names)] = names
        place += memory.names_at
        temporary_at = place + len(path_bytes) + 1
        stamp_at = temporary_at + len(temporary_bytes) + 1
        _ASKED.pack_into(
            memory.numbers, (HEADER + count * ROW) * NUMBER_BYTES,
            cast.address if fits else 0, place, temporary_at, stamp_at, address_of(payload), len(payload),
            memory.states[count], 0, Answer.WAITING,
        )  # fmt: skip
        self._count = count + 1
        self._publish(at.READY, self._count)

    def close(self) -> None:
        """There will be no more rows: until then `take` waits for them."""
        self._publish(at.CLOSED, 1)

    def _publish(self, place: int, number: int) -> None:
        # Under the lock, for processors that would let others see the number before the row (64-bit Arm).
        numbers, library = self._memory.numbers_at, self._library
        library.lock(numbers)
        self._memory.numbers[place] = number
        library.unlock(numbers)

    def gather(self) -> None:
        """For who is about to add rows: lets go of the interpreter for a moment, unless somebody is in `take` already,
        so that others are there when the first row is."""
        self._loop.gather(self._memory.numbers_at)

    def take(self, landing: Landing, worker: int) -> Taken | None:
        """Does rows until one needs help; None if none is left. `worker` is this caller's own number, not zero. Blocks
        for as long as the file system pleases.

        Raises:
            AbandonedError: the caller has gone.
        """
        numbers, table, scratch = self._memory.numbers, self._memory.numbers_at, self._memories.scratch()
        row = self._loop.take(table, landing.gate().address, scratch.address, worker)
        landing.took(scratch.longest_s())
        if row < 0:
            landing.check()
            return None
        first = HEADER + row * ROW
        answer = Answer(numbers[first + at.ANSWER])
        fd, size, inode, major, minor = numbers[first + at.FD : first + at.MINOR + 1]
        if answer is Answer.OPENED:
            return Taken(row, answer, Opened(fd, size, inode, os.makedev(major, minor)))
        asked = answer in (Answer.FAILED, Answer.UNPUBLISHED)
        return Taken(row, answer, OSError(fd, os.strerror(fd)) if asked else None)

    def finished(self, worker: int) -> list[tuple[int, Answer]]:
        """The rows that `take` has done for this worker without help."""
        numbers, end = self._memory.numbers, HEADER + self._count * ROW
        workers, answers = numbers[HEADER + at.WORKER : end : ROW], numbers[HEADER + at.ANSWER : end : ROW]
        return [
            (row, _DONE if answer == _DONE else _EXISTS)
            for row, (taker, answer) in enumerate(zip(workers, answers, strict=True))
            if taker == worker and answer <= _EXISTS
        ]

    def rest(self) -> Sequence[int]:
        """The rows that nobody has taken, and now nobody will."""
        numbers, table, library = self._memory.numbers, self._memory.numbers_at, self._library
        library.lock(table)
        rows = range(numbers[at.NEXT], numbers[at.READY])
        numbers[at.NEXT] = numbers[at.READY]
        library.unlock(table)
        for row in rows:
            numbers[HEADER + row * ROW + at.WORKER] = -1
            numbers[HEADER + row * ROW + at.ANSWER] = Answer.UNFIT
        return rows

    def check_integrity(self) -> None:
        """While nobody is in `take`. Raises AssertionError if a row was taken out of turn or is not accounted for."""
        numbers = self._memory.numbers
        taken, ready = numbers[at.NEXT], numbers[at.READY]
        assert 0 <= taken <= ready == self._count <= MOST_ROWS, (taken, ready, self._count)
        for row in range(ready):
            first = HEADER + row * ROW
            worker, answer = numbers[first + at.WORKER], Answer(numbers[first + at.ANSWER])
            assert (worker != 0) == (answer is not Answer.WAITING) == (row < taken), (row, worker, answer)
