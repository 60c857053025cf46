"""Opens, reads and hashes a run of chunk files in a few steps outside the interpreter.

Whatever a worker does between two system calls needs the interpreter's lock, and it waits for that whenever another
worker, or anything else in the server, has it: call by call, 64 chunks of 1 MiB took 1.6 times as long to load as the
same reads and hashes in C. Here a run of chunks is three calls without the lock: open all, read and hash all, close
all. The loops are compiled by numba (a second, once a process, on a thread of its own; LMCache uses numba too), and the
hash is xxhash's own C function. Until they are compiled, and wherever a part is missing, `fileops.py` and `transfer.py`
do the same call by call.
"""

import ctypes
import importlib
import itertools
import logging
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import xxhash

from app.tiers.curvine import chunkfile
from app.tiers.curvine.chunkfile import Frame
from app.tiers.curvine.fused_loops import MOST_FILES, OPEN_ROW, READ, READ_ROW, STEP, UNREAD, compiled_loops
from app.tiers.curvine.identity import Family

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 64 * 1024 * 1024
"""Of payload that one call reads: whoever wants to take the memory away waits for it."""
_OPENED = struct.Struct(f"{OPEN_ROW}q")
_READ = struct.Struct(f"{READ_ROW}q")
# Room for a file's head and tail, which are about a page each.
_HEAD_ROOM: Final = 16 * 1024
_TAIL_ROOM: Final = 8 * 1024
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC


class Opened(NamedTuple):
    """A file that is open for reading."""

    fd: int
    size: int
    inode: int
    device: int


class Wanted(NamedTuple):
    """An open file of the right size, and where its payload belongs."""

    fd: int
    frame: Frame
    payload: memoryview


def portions(wanted: Sequence[Wanted]) -> Iterator[Sequence[Wanted]]:
    """What one call of `read` takes, one after another."""
    start = total = 0
    for index, want in enumerate(wanted):
        total += len(want.payload)
        if index > start and (total > MOST_BYTES or index - start == MOST_FILES):
            yield wanted[start:index]
            start, total = index, len(want.payload)
    yield wanted[start:]


class _Hash128(ctypes.Structure):
    """XXH128_hash_t."""

    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


class _Scratch:
    """One thread's memory: the rows of a run, a place for heads and tails, the states of the hashes."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._free: Callable[[ctypes.c_void_p], object] = library.XXH3_freeState
        create = library.XXH3_createState
        create.restype = ctypes.c_void_p
        self.states = [ctypes.c_void_p(create()) for _ in range(MOST_FILES)]
        self.rows = bytearray(MOST_FILES * max(_OPENED.size, _READ.size))
        self.rows_at = _address(self.rows)
        self.work = bytearray(512)
        self.work_at = _address(self.work)
        self.head = bytearray(_HEAD_ROOM)
        self.head_at = _address(self.head)
        self.tails = bytearray(MOST_FILES * _TAIL_ROOM)
        self.tails_at = _address(self.tails)

    def __del__(self) -> None:
        for state in self.states:
            self._free(state)


class FusedReader:
    """Any thread. `open` and `close` block for as long as the file system pleases, `read` only as `flags` allow."""

    def __init__(self) -> None:
        """Compiles. Raises whatever numba, ctypes or the installed xxhash have against it."""
        path = str(importlib.import_module("xxhash._xxhash").__file__)
        self._library = ctypes.CDLL(path)
        self._digest: Callable[[ctypes.c_void_p], Any] = ctypes.PyDLL(path).XXH3_128bits_digest
        self._digest.restype = _Hash128
        self._local = threading.local()
        self._loops = compiled_loops(self._library)
        self._check()

    def _scratch(self) -> _Scratch:
        scratch: _Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = _Scratch(self._library)
        return scratch

    def open(self, paths: Sequence[str]) -> list[Opened | OSError]:
        """Opens every file for reading."""
        opened: list[Opened | OSError] = []
        scratch = self._scratch()
        for start in range(0, len(paths), MOST_FILES):
            run = paths[start : start + MOST_FILES]
            names = b"\0".join(map(os.fsencode, run))
            self._loops.open(_address_of(names), len(run), _OPEN_FLAGS, scratch.rows_at, scratch.work_at)
            rows = itertools.islice(_OPENED.iter_unpack(scratch.rows[: len(run) * _OPENED.size]), len(run))
            for path, (fd, code, size, inode, major, minor) in zip(run, rows, strict=True):
                if code:
                    opened.append(OSError(code, os.strerror(code), path))
                else:
                    opened.append(Opened(fd, size, inode, os.makedev(major, minor)))
        return opened

    def close(self, fds: Sequence[int]) -> None:
        """Closes them all; what the file system says to that is of no interest to a reader."""
        for start in range(0, len(fds), MOST_FILES):
            run = fds[start : start + MOST_FILES]
            self._loops.close(struct.pack(f"{len(run)}q", *run), len(run))

    def read(self, wanted: Sequence[Wanted], flags: int) -> list[bool | None]:
        """Reads whole files into their payloads' places; at most one of `portions`. For each whether every byte around
        the payload is the expected one and the checksum matches; None if not all of it could be had so. On anything but
        True the payload's place holds rubbish."""
        assert len(wanted) <= MOST_FILES, len(wanted)
        if not all(map(_fits, wanted)):
            return [None] * len(wanted)
        scratch = self._scratch()
        self._fill(scratch, wanted)
        heads = b"".join([want.frame.head() for want in wanted])
        self._loops.read(
            _address_of(heads), len(wanted), flags,
            scratch.rows_at, scratch.work_at, scratch.head_at, scratch.tails_at, _TAIL_ROOM,
        )  # fmt: skip
        rows = _READ.iter_unpack(memoryview(scratch.rows)[: len(wanted) * _READ.size])
        return [self._answer(scratch, number, wanted[number], row[1]) for number, row in enumerate(rows)]

    def _fill(self, scratch: _Scratch, wanted: Sequence[Wanted]) -> None:
        at = 0
        for (fd, frame, payload), state in zip(wanted, scratch.states, strict=False):
            place = ctypes.addressof(ctypes.c_char.from_buffer(payload))
            head_bytes, tail_bytes = frame.head_bytes, frame.tail_bytes
            _READ.pack_into(scratch.rows, at, fd, 0, head_bytes, place, len(payload), tail_bytes, state.value)
            at += _READ.size

    def _answer(self, scratch: _Scratch, number: int, want: Wanted, answer: int) -> bool | None:
        if answer == UNREAD:
            return None
        value = self._digest(scratch.states[number])
        tail = want.frame.tail(f"{value.high:016x}{value.low:016x}")
        return answer == READ and scratch.tails.startswith(tail, number * _TAIL_ROOM)

    def _check(self) -> None:
        """Raises RuntimeError unless a file comes out as it went in."""
        payload = os.urandom(STEP + STEP // 3)
        kind = Family.of(model="check", layout=f"uint8[{len(payload)}]")
        frame = chunkfile.frame(kind.chunk(b"check"), len(payload))
        into = bytearray(len(payload))
        memory = os.memfd_create("tierserve-check", os.MFD_CLOEXEC)
        try:
            os.writev(memory, [frame.head(), payload, frame.tail(xxhash.xxh3_128_hexdigest(payload))])
            (file,) = self.open([f"/proc/self/fd/{memory}"])
            if isinstance(file, OSError):
                raise file
            answers = self.read([Wanted(file.fd, frame, memoryview(into))], 0)
            self.close([file.fd])
            status = os.fstat(memory)
        finally:
            os.close(memory)
        if answers != [True] or into != payload or file[1:] != (status.st_size, status.st_ino, status.st_dev):
            raise RuntimeError("the compiled reader does not read what was written")


def _fits(want: Wanted) -> bool:
    frame, size = want.frame, len(want.payload)
    return 0 < size <= MOST_BYTES and frame.head_bytes <= _HEAD_ROOM and frame.tail_bytes <= _TAIL_ROOM


def _address(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _address_of(constant: bytes) -> int:
    """Valid while `constant` is."""
    return ctypes.cast(ctypes.c_char_p(constant), ctypes.c_void_p).value or 0


class _Holder:
    """The process's one reader, compiled in the background."""

    def __init__(self) -> None:
        self.reader: FusedReader | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> threading.Thread:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._compile, name="curvine-compile", daemon=True)
                self._thread.start()
            return self._thread

    def _compile(self) -> None:
        try:
            self.reader = FusedReader()
        except Exception as error:
            logger.info("chunks are read step by step, a little slower: %s", error)


_holder = _Holder()


def prepare(*, wait: bool = False) -> None:
    """Starts compiling, once a process. `wait`: until it is done, one way or the other."""
    thread = _holder.start()
    if wait:
        thread.join()


def reader() -> FusedReader | None:
    """The compiled reader, once there is one."""
    return _holder.reader
