"""Reads a file from the page cache and hashes it, in one step outside the interpreter.

Between a read and the hash of what was read, a worker needs the interpreter's lock, and waits for it whenever another
worker, or anything else in the server, has it: with two workers that costs a tenth of a load. Here numba compiles the
loop (a third of a second, once a process, on a thread of its own; LMCache uses numba too), and the hash is xxhash's own
C function. Until it is compiled, and wherever a part is missing, `transfer.py` does the same step by step.
"""

import ctypes
import importlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Final

import xxhash

logger = logging.getLogger(__name__)

STEP: Final = 512 * 1024
"""What is read is hashed while it is in the core's own cache."""
_MOST_PAYLOAD: Final = 64 * 1024 * 1024
# Room for a file's head and tail, which are about a page each.
_FRAME_ROOM: Final = 32 * 1024


class _Hash128(ctypes.Structure):
    """XXH128_hash_t."""

    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


class _Scratch:
    """One thread's memory: vectors for the system call, the hash's state, a place for head and tail."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._free: Callable[[ctypes.c_void_p], object] = library.XXH3_freeState
        create = library.XXH3_createState
        create.restype = ctypes.c_void_p
        self.state = ctypes.c_void_p(create())
        self.vectors = (ctypes.c_ssize_t * 6)()
        self.around = bytearray(_FRAME_ROOM)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.around))

    def __del__(self) -> None:
        self._free(self.state)


class FusedReader:
    """Any thread; every call blocks only as `flags` allow."""

    def __init__(self) -> None:
        """Compiles. Raises whatever numba, ctypes or the installed xxhash have against it."""
        path = str(importlib.import_module("xxhash._xxhash").__file__)
        self._library = ctypes.CDLL(path)
        self._digest: Callable[[ctypes.c_void_p], Any] = ctypes.PyDLL(path).XXH3_128bits_digest
        self._digest.restype = _Hash128
        self._local = threading.local()
        self._read, self._keep = _compiled(self._library)
        self._check()

    def read(
        self, fd: int, head: bytes, payload: memoryview, tail_bytes: int, tail: Callable[[str], bytes], flags: int
    ) -> bool | None:
        """Reads a file of exactly these three parts from its beginning. Whether head and tail are the expected ones;
        `tail` is given the payload's xxh3-128 in hexadecimal. None if not all of the file could be had so. On anything
        but True `payload` holds rubbish."""
        size, head_bytes = len(payload), len(head)
        if head_bytes + tail_bytes > _FRAME_ROOM or not 0 < size <= _MOST_PAYLOAD:
            return None
        scratch: _Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = _Scratch(self._library)
        at, state = scratch.address, scratch.state
        into = ctypes.addressof(ctypes.c_char.from_buffer(payload))
        if not self._read(fd, flags, scratch.vectors, state, at, head_bytes, into, size, at + head_bytes, tail_bytes):
            return None
        value = self._digest(state)
        around = scratch.around
        return around.startswith(head) and around.startswith(tail(f"{value.high:016x}{value.low:016x}"), head_bytes)

    def _check(self) -> None:
        """Raises RuntimeError unless bytes and checksum come out right."""
        payload = os.urandom(STEP + STEP // 3)
        into = bytearray(len(payload))
        checksum = xxhash.xxh3_128_hexdigest(payload).encode()
        fd = os.memfd_create("tierserve-check", os.MFD_CLOEXEC)
        try:
            os.writev(fd, [b"head", payload, checksum])
            right = self.read(fd, b"head", memoryview(into), len(checksum), str.encode, 0)
        finally:
            os.close(fd)
        if not right or into != payload:
            raise RuntimeError("the compiled reader does not read what was written")


def _compiled(library: ctypes.CDLL) -> tuple[Callable[..., int], object]:
    """The loop as a C function that ctypes calls without the interpreter's lock, and what must outlive it."""
    from numba import carray, cfunc, types

    preadv2 = ctypes.CDLL(None).preadv2
    preadv2.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_int)
    preadv2.restype = ctypes.c_long
    reset = library.XXH3_128bits_reset
    reset.argtypes = (ctypes.c_void_p,)
    reset.restype = ctypes.c_int
    # x86 builds choose the widest instructions at run time, under names of their own.
    update = getattr(library, "XXH3_128bits_update_dispatch", None) or library.XXH3_128bits_update
    update.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    update.restype = ctypes.c_int
    size, pointer, integer = types.intp, types.voidptr, types.int32

    @cfunc(integer(integer, integer, pointer, pointer, size, size, size, size, size, size))
    def read(fd, flags, vectors, state, head, head_n, payload, payload_n, tail, tail_n):  # type: ignore[no-untyped-def]  # pragma: no cover
        vector = carray(vectors, (6,), dtype=size)
        reset(state)
        at = 0
        step = STEP - head_n  # later steps start at round offsets of the file
        while True:
            last = at + step + STEP // 4 >= payload_n
            if last:
                step = payload_n - at
            count, want, offset = 0, step, at + head_n
            if at == 0:
                vector[0], vector[1] = head, head_n
                count, want, offset = 1, want + head_n, 0
            vector[2 * count], vector[2 * count + 1] = payload + at, step
            count += 1
            if last:
                vector[2 * count], vector[2 * count + 1] = tail, tail_n
                count, want = count + 1, want + tail_n
            if preadv2(fd, vectors, count, offset, flags) != want:
                return 0
            update(state, payload + at, step)
            if last:
                return 1
            at += step
            step = STEP

    return read.ctypes, read


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
