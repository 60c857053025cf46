"""A table of files that are to be read or written, which several workers take row by row in compiled code."""

import ctypes
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from app.tiers.curvine import chunkfile
from app.tiers.curvine import fused_layout as at
from app.tiers.curvine.address import address_of
from app.tiers.curvine.chunkfile import CHECKSUM_HEX, Mould
from app.tiers.curvine.fused_layout import HEADER, MOST_ROWS, NUMBER_BYTES, ROW, Answer
from app.tiers.curvine.fused_take import Loop
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.landing import Landing

_ASKED: Final = struct.Struct("9q")
# A row's path, temporary and hash.
_NAMES_ROOM: Final = 2048
# Tables whose memory is kept: as many loads and stores as are under way at once on a busy node.
_SPARE: Final = 8


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


class Library(Protocol):
    """The functions that a table calls, none of which blocks: with the interpreter's lock held."""

    new_state: Callable[[], int]
    free_state: Callable[[int], object]
    lock: Callable[[int], object]
    unlock: Callable[[int], object]


class Memories:
    """What tables' addresses point to, lent to one table after another. Any thread."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._spare: deque[_Memory] = deque(maxlen=_SPARE)
        self._local = threading.local()

    def take(self) -> "_Memory":
        try:
            return self._spare.pop()
        except IndexError:
            return _Memory(self.library)

    def give_back(self, memory: "_Memory") -> None:
        self._spare.append(memory)

    def scratch(self) -> "_Scratch":
        """This thread's own."""
        scratch: _Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = _Scratch()
        return scratch


class _Scratch:
    def __init__(self) -> None:
        self._numbers = (ctypes.c_int64 * (at.SCRATCH // NUMBER_BYTES))()
        self.address = ctypes.addressof(self._numbers)

    def longest_s(self) -> float:
        """What the slowest file of this thread's last call took."""
        return float(self._numbers[at.LONGEST // NUMBER_BYTES]) / 1e9


class _Memory:
    def __init__(self, library: Library) -> None:
        self.numbers = (ctypes.c_int64 * (HEADER + MOST_ROWS * ROW))()
        self.numbers_at = ctypes.addressof(self.numbers)
        self.names = bytearray(MOST_ROWS * _NAMES_ROOM)
        self.names_at = address_of(self.names)
        self.states = [library.new_state() for _ in range(MOST_ROWS)]
        self._free = library.free_state

    def __del__(self) -> None:
        for state in self.states:
            self._free(state)


class _Cast:
    """A mould where compiled code finds it."""

    def __init__(self, chunk: ChunkId, payload_bytes: int, mould: Mould) -> None:
        self.family, self.kv_rank, self.group, self.salt = chunk.family, chunk.kv_rank, chunk.group, chunk.salt
        self.payload_bytes, self.hash_bytes = payload_bytes, len(chunk.chunk_hash)
        head, tail = (ctypes.create_string_buffer(part, len(part)) for part in (mould.head, mould.tail))
        self._kept = head, tail
        self._numbers = (ctypes.c_int64 * at.MOULD_NUMBERS)(
            ctypes.addressof(head), len(mould.head), ctypes.addressof(tail), len(mould.tail), mould.file_bytes,
            2 * self.hash_bytes, mould.hash_in_head, mould.hash_in_tail, mould.checksum_in_tail,
        )  # fmt: skip
        fits = len(mould.head) <= at.AROUND_ROOM and len(mould.tail) <= at.AROUND_ROOM
        assert mould.checksum_in_tail + CHECKSUM_HEX <= len(mould.tail), mould
        self.address = ctypes.addressof(self._numbers) if fits else 0

    def serves(self, chunk: ChunkId, payload_bytes: int) -> bool:
        return (
            payload_bytes == self.payload_bytes
            and chunk.family is self.family
            and chunk.kv_rank == self.kv_rank
            and chunk.group == self.group
            and chunk.salt == self.salt
            and len(chunk.chunk_hash) == self.hash_bytes
        )


class FusedTable:
    """At most `MOST_ROWS` files, for several workers. One thread calls `add` and `close`, any `take`, `finished` and
    `rest`; whoever is in `take` keeps the table and the payloads alive."""

    def __init__(self, memories: Memories, loop: Loop, option: int) -> None:
        """`option` is what `fused_layout.OPTION` says of it."""
        self._memories = memories
        self._library = memories.library
        self._loop = loop
        self._memory = memory = memories.take()
        self._casts: list[_Cast] = []
        self._count = 0
        numbers = memory.numbers
        numbers[at.NEXT] = numbers[at.READY] = numbers[at.CLOSED] = numbers[at.FOLLOWED] = 0
        numbers[at.OPTION] = option

    def __del__(self) -> None:
        self._memories.give_back(self._memory)

    def add(self, chunk: ChunkId, payload: memoryview, path: str, temporary: str = "") -> None:
        """The next row; workers may take it at once."""
        memory, count = self._memory, self._count
        assert count < MOST_ROWS, count
        path_bytes, temporary_bytes = os.fsencode(path), os.fsencode(temporary)
        names = b"%b\0%b\0%b" % (path_bytes, temporary_bytes, chunk.chunk_hash.hex().encode())
        place = count * _NAMES_ROOM
        mould = 0
        if len(names) <= _NAMES_ROOM:
            memory.names[place : place + len(names)] = names
            mould = self._mould(chunk, len(payload))
        place += memory.names_at
        temporary_at = place + len(path_bytes) + 1
        hash_at = temporary_at + len(temporary_bytes) + 1
        _ASKED.pack_into(
            memory.numbers, (HEADER + count * ROW) * NUMBER_BYTES,
            mould, place, temporary_at, hash_at, address_of(payload), len(payload), memory.states[count],
            0, Answer.WAITING,
        )  # fmt: skip
        self._count = count + 1
        self._publish(at.READY, self._count)

    def _mould(self, chunk: ChunkId, payload_bytes: int) -> int:
        for cast in self._casts:
            if cast.serves(chunk, payload_bytes):
                return cast.address
        mould = chunkfile.frame(chunk, payload_bytes).mould()
        self._casts.append(_Cast(chunk, payload_bytes, mould))
        return self._casts[-1].address

    def close(self) -> None:
        """There will be no more rows: until then `take` waits for them."""
        self._publish(at.CLOSED, 1)

    def _publish(self, place: int, number: int) -> None:
        # Under the lock, for processors that would let others see the number before the row (64-bit Arm).
        numbers, library = self._memory.numbers_at, self._library
        library.lock(numbers)
        self._memory.numbers[place] = number
        library.unlock(numbers)

    def take(self, landing: Landing, worker: int, *, leading: bool = False) -> Taken | None:
        """Does rows until one needs help; None if none is left. `worker` is this caller's own number, not zero. Blocks
        for as long as the file system pleases. `leading` is for who adds the rows: until somebody else has come, and
        never waiting for rows.

        Raises:
            AbandonedError: the caller has gone.
        """
        numbers, table, scratch = self._memory.numbers, self._memory.numbers_at, self._memories.scratch()
        row = self._loop.take(table, landing.gate().address, scratch.address, worker, leading)
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
        numbers = self._memory.numbers
        found = []
        for row in range(self._count):
            first = HEADER + row * ROW
            if numbers[first + at.WORKER] == worker and numbers[first + at.ANSWER] in (Answer.DONE, Answer.EXISTS):
                found.append((row, Answer(numbers[first + at.ANSWER])))
        return found

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
