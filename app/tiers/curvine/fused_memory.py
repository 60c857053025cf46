"""The memory that tables and their workers bring to compiled code."""

import ctypes
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Protocol

from app.tiers.curvine import chunkfile
from app.tiers.curvine import fused_layout as at
from app.tiers.curvine.address import address_of
from app.tiers.curvine.chunkfile import Frame
from app.tiers.curvine.fused_layout import HEADER, MOST_ROWS, NUMBER_BYTES, ROW
from app.tiers.curvine.identity import ChunkId, Family

NAMES_ROOM: Final = 2048
"""For a row's path, temporary and stamp."""
# Tables whose memory is kept: as many loads and stores as are under way at once on a busy node.
_SPARE: Final = 8
_MOST_CASTS: Final = 256


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
        self._spare: deque[Memory] = deque()
        self._casts: OrderedDict[tuple[Family, int, int], Cast] = OrderedDict()
        self._lock = threading.Lock()
        self._local = threading.local()

    def take(self) -> "Memory":
        try:
            return self._spare.pop()
        except IndexError:
            return Memory(self.library)

    def give_back(self, memory: "Memory") -> None:
        """Called when a table is no more, maybe by the garbage collector, which may have found table and memory in one
        cycle: so a memory must not have a finalizer of its own, which would run then too."""
        if len(self._spare) < _SPARE:
            self._spare.append(memory)
        else:
            memory.free()

    def cast(self, chunk: ChunkId, payload_bytes: int, identity_bytes: int) -> "Cast":
        """What every chunk of these lengths in the family goes into."""
        key = chunk.family, payload_bytes, identity_bytes
        with self._lock:
            if key not in self._casts:
                self._casts[key] = Cast(chunkfile.frame(chunk, payload_bytes))
                while len(self._casts) > _MOST_CASTS:
                    self._casts.popitem(last=False)
            return self._casts[key]

    def scratch(self) -> "Scratch":
        """This thread's own."""
        scratch: Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = Scratch()
        return scratch


class Scratch:
    """One thread's, for the row that it is at."""

    def __init__(self) -> None:
        self._numbers = (ctypes.c_int64 * (at.SCRATCH // NUMBER_BYTES))()
        self.address = ctypes.addressof(self._numbers)

    def longest_s(self) -> float:
        """What the slowest file of this thread's last call took."""
        return float(self._numbers[at.LONGEST // NUMBER_BYTES]) / 1e9


class Memory:
    """One table's: its numbers, its rows' names, and a hash's state for each."""

    def __init__(self, library: Library) -> None:
        self.numbers = (ctypes.c_int64 * (HEADER + MOST_ROWS * ROW))()
        self.numbers_at = ctypes.addressof(self.numbers)
        self.names = bytearray(MOST_ROWS * NAMES_ROOM)
        self.names_at = address_of(self.names)
        self.states = [library.new_state() for _ in range(MOST_ROWS)]
        self._free_state = library.free_state

    def free(self) -> None:
        """Nobody uses it any more."""
        for state in self.states:
            self._free_state(state)
        self.states.clear()


class Cast:
    """A mould where compiled code finds it."""

    def __init__(self, frame: Frame) -> None:
        mould = frame.mould()
        self.family, self.payload_bytes, self.identity_bytes = (
            frame.chunk.family,
            frame.payload_bytes,
            len(frame.identity),
        )
        self.stamp_at = mould.stamp_in_identity
        head, tail = (ctypes.create_string_buffer(part, len(part)) for part in (mould.head, mould.tail))
        self._kept = head, tail
        self._numbers = (ctypes.c_int64 * at.MOULD_NUMBERS)(
            ctypes.addressof(head), len(mould.head), ctypes.addressof(tail), len(mould.tail), mould.file_bytes,
            self.identity_bytes - self.stamp_at, mould.stamp_in_head, mould.stamp_in_tail, mould.checksum_in_tail,
        )  # fmt: skip
        fits = len(mould.head) <= at.AROUND_ROOM and len(mould.tail) <= at.AROUND_ROOM
        self.address = ctypes.addressof(self._numbers) if fits else 0

    def serves(self, family: Family, payload_bytes: int, identity_bytes: int) -> bool:
        return family is self.family and payload_bytes == self.payload_bytes and identity_bytes == self.identity_bytes
