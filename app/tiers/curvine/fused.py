"""Opens, reads, hashes and closes chunk files outside the interpreter, several threads from one table.

Whatever a worker does between two system calls needs the interpreter's lock, and code that has left the processor's
caches, because reading a chunk empties them: 64 chunks of 1 MiB took 1.6 times as long as the same reads and hashes in
C. So the interpreter prepares a table of what is wanted, workers take rows of it in compiled code (`fused_loop.py`),
and come back only for a file that needs more than a read from the page cache. numba compiles the loop (a second or two,
once a process, before it serves: beside the first requests it would keep the interpreter from them; LMCache uses numba
too), and the hash is xxhash's own C function. Wherever a part is missing, `reading.py` does the same file by file.
"""

import ctypes
import functools
import importlib
import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import xxhash

from app.tiers.curvine import chunkfile, fused_loop
from app.tiers.curvine.chunkfile import Frame
from app.tiers.curvine.fused_loop import (
    CLOSED,
    FLAGS,
    FOLLOWED,
    HEAD_ROOM,
    HEADER,
    MOST_ROWS,
    NEXT,
    READY,
    ROW,
    SCRATCH,
    STEP,
    Answer,
    Loop,
    declared,
)
from app.tiers.curvine.identity import Family
from app.tiers.curvine.landing import Landing

logger = logging.getLogger(__name__)

_ASKED: Final = struct.Struct("14q")
_BYTES: Final = 8
# A row's path, head, tail and the tail that is found; a page or so each but for long names.
_PATH_ROOM: Final = 1024
_HEAD_AT: Final = _PATH_ROOM
_TAIL_AT: Final = _HEAD_AT + HEAD_ROOM
_FOUND_AT: Final = _TAIL_AT + HEAD_ROOM
_ROW_ROOM: Final = _FOUND_AT + HEAD_ROOM
# Tables whose memory is kept: as many loads as are under way at once on a busy node.
_SPARE: Final = 8


class Opened(NamedTuple):
    """A file that is open for reading."""

    fd: int
    size: int
    inode: int
    device: int


class Taken(NamedTuple):
    """A row that needs more than reading from the page cache; `file` is None where nobody has opened it yet."""

    row: int
    file: Opened | OSError | None


class FusedReader:
    """The compiled parts. Any thread."""

    def __init__(self) -> None:
        """Compiles. Raises whatever numba, ctypes or the installed xxhash have against it."""
        path = str(importlib.import_module("xxhash._xxhash").__file__)
        library = ctypes.CDLL(path)
        self.loop: Loop = fused_loop.compiled_loop(library)
        short = ctypes.PyDLL(path)  # calls that are not worth letting go of the interpreter
        self.new_state: Callable[[], int] = declared(short.XXH3_createState, ctypes.c_void_p)
        self.free_state: Callable[[int], object] = declared(short.XXH3_freeState, ctypes.c_int, ctypes.c_void_p)
        # Held for nanoseconds by others, who never want the interpreter meanwhile.
        c = ctypes.PyDLL(None)
        self.lock: Callable[[int], object] = declared(c.pthread_mutex_lock, ctypes.c_int, ctypes.c_void_p)
        self.unlock: Callable[[int], object] = declared(c.pthread_mutex_unlock, ctypes.c_int, ctypes.c_void_p)
        self.spare: deque[_Memory] = deque(maxlen=_SPARE)
        self._local = threading.local()
        _check(self)

    def memory(self) -> "_Memory":
        """For a table, which puts it back into `spare`."""
        try:
            return self.spare.pop()
        except IndexError:
            return _Memory(self)

    def scratch(self) -> int:
        """The address of this thread's own memory."""
        memory: bytearray | None = getattr(self._local, "memory", None)
        if memory is None:
            memory = self._local.memory = bytearray(SCRATCH)
            self._local.address = _address(memory)
        return int(self._local.address)


class _Memory:
    """What a table's addresses point to; lent to one table after another."""

    def __init__(self, reader: "FusedReader") -> None:
        self.numbers = (ctypes.c_int64 * (HEADER + MOST_ROWS * ROW))()
        self.numbers_at = ctypes.addressof(self.numbers)
        self.around = bytearray(MOST_ROWS * _ROW_ROOM)
        self.around_at = _address(self.around)
        self.states = [reader.new_state() for _ in range(MOST_ROWS)]
        self._free = reader.free_state

    def __del__(self) -> None:
        for state in self.states:
            self._free(state)


class FusedTable:
    """At most `MOST_ROWS` files that are to be read, for several workers. One thread calls `add` and `close`, any
    `take` and `finished`; whoever is in `take` keeps the table and the payloads alive."""

    def __init__(self, reader: FusedReader, flags: int = os.RWF_NOWAIT) -> None:
        """`flags`: of preadv2, which must not block."""
        self._reader = reader
        self._memory = memory = reader.memory()
        self._count = 0
        numbers = memory.numbers
        numbers[NEXT] = numbers[READY] = numbers[CLOSED] = numbers[FOLLOWED] = 0
        numbers[FLAGS] = flags

    def __del__(self) -> None:
        self._reader.spare.append(self._memory)

    def add(self, path: str, frame: Frame, payload: memoryview) -> None:
        """The next row; workers may take it at once."""
        memory, count = self._memory, self._count
        assert count < MOST_ROWS, count
        name, head, (tail, hole) = os.fsencode(path), frame.head(), frame.open_tail()
        at = count * _ROW_ROOM
        fits = len(name) < _PATH_ROOM and len(head) <= HEAD_ROOM and len(tail) <= HEAD_ROOM
        if fits:
            around = memory.around
            around[at : at + len(name) + 1] = name + b"\0"
            around[at + _HEAD_AT : at + _HEAD_AT + len(head)] = head
            around[at + _TAIL_AT : at + _TAIL_AT + len(tail)] = tail
        place = memory.around_at + at
        _ASKED.pack_into(
            memory.numbers, (HEADER + count * ROW) * _BYTES,
            fits, place, frame.size, place + _HEAD_AT, len(head), _address(payload) if len(payload) else 0,
            len(payload), place + _TAIL_AT, place + _FOUND_AT, len(tail), hole, memory.states[count], 0, 0,
        )  # fmt: skip
        self._count = count + 1
        self._publish(READY, self._count)

    def close(self) -> None:
        """There will be no more rows: until then `take` waits for them."""
        self._publish(CLOSED, 1)

    def _publish(self, place: int, number: int) -> None:
        # Under the lock, for processors that would let others see the number before the row (64-bit Arm).
        memory, reader = self._memory, self._reader
        reader.lock(memory.numbers_at)
        memory.numbers[place] = number
        reader.unlock(memory.numbers_at)

    def take(self, landing: Landing, worker: int, *, leading: bool = False) -> Taken | None:
        """Reads rows until one needs help; None if none is left. `worker` is this caller's own number, not zero. Blocks
        for as long as the file system pleases. `leading` is for who adds the rows: until somebody else has come, and
        never waiting for rows.

        Raises:
            AbandonedError: the caller has gone.
        """
        numbers = self._memory.numbers
        reader, table = self._reader, self._memory.numbers_at
        index = reader.loop.take(table, landing.gate().address, reader.scratch(), worker, leading)
        if index < 0:
            landing.check()
            return None
        at = HEADER + index * ROW
        answer = Answer(numbers[at + fused_loop.ANSWER])
        if answer is Answer.UNFIT:
            return Taken(index, None)
        fd, size, inode, major, minor = numbers[at + fused_loop.FD : at + fused_loop.FD + 5]
        if answer is Answer.FAILED:
            return Taken(index, OSError(fd, os.strerror(fd)))
        return Taken(index, Opened(fd, size, inode, os.makedev(major, minor)))

    def finished(self, worker: int) -> list[int]:
        """The rows that `take` has read for this worker and found right."""
        numbers = self._memory.numbers
        found = []
        for row in range(self._count):
            at = HEADER + row * ROW + fused_loop.WORKER
            if numbers[at] == worker and numbers[at + 1] == Answer.READ:
                found.append(row)
        return found

    def check_integrity(self) -> None:
        """While nobody is in `take`. Raises AssertionError if a row was taken out of turn or is not accounted for."""
        numbers = self._memory.numbers
        taken, ready = numbers[NEXT], numbers[READY]
        assert 0 <= taken <= ready == self._count <= MOST_ROWS, (taken, ready, self._count)
        for row in range(ready):
            at = HEADER + row * ROW + fused_loop.WORKER
            worker, answer = numbers[at], Answer(numbers[at + 1])
            assert (worker != 0) == (answer is not Answer.WAITING) == (row < taken), (row, worker, answer)


def _address(memory: bytearray | memoryview) -> int:
    """Valid while `memory` is neither released nor resized."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _check(reader: FusedReader) -> None:
    """Raises RuntimeError unless a file comes out as it went in."""
    payload = os.urandom(STEP + STEP // 3)
    kind = Family.of(model="check", layout=f"uint8[{len(payload)}]")
    frame = chunkfile.frame(kind.chunk(b"check"), len(payload))
    into = bytearray(len(payload))
    table = FusedTable(reader, flags=0)  # memory files refuse RWF_NOWAIT
    memory = os.memfd_create("tierserve-check", os.MFD_CLOEXEC)
    try:
        os.writev(memory, [frame.head(), payload, frame.tail(xxhash.xxh3_128_hexdigest(payload))])
        table.add(f"/proc/self/fd/{memory}", frame, memoryview(into))
        table.close()
        left, finished = table.take(Landing(), 1), table.finished(1)
    finally:
        os.close(memory)
    if left is not None or finished != [0] or into != payload:
        raise RuntimeError("the compiled reader does not read what was written")


@functools.cache
def reader() -> FusedReader | None:
    """The process's one, compiled by the first call; None where that does not work."""
    try:
        return FusedReader()
    except Exception as error:
        logger.info("chunks are read step by step, a little slower: %s", error)
        return None
