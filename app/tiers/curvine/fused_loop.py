"""The loop of `fused.py`, compiled: a plain C function that ctypes calls without the interpreter's lock.

It works on a table of 64-bit numbers that several threads share: a header, then a row for each file.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, cast

from app.tiers.curvine.chunkfile import CHECKSUM_HEX
from app.tiers.curvine.fused_digest import hexadecimal_digest
from app.tiers.curvine.landing import Gate

STEP: Final = 512 * 1024
"""What is read is hashed while it is in the core's own cache."""

NEXT: Final = 8
"""In the header, behind a POSIX mutex: the next row to be taken."""
READY: Final = 9
"""Rows that may be taken."""
CLOSED: Final = 10
"""Not zero once there will be no more rows."""
FOLLOWED: Final = 11
"""Not zero once a worker has come who is not leading."""
FLAGS: Final = 12
"""Of preadv2."""
HEADER: Final = 16
MOST_ROWS: Final = 64

ROW: Final = 19
"""Numbers in a row. What is asked for: addresses, and sizes. `HEAD` and `TAIL` are the expected ones, `FOUND` is where
the file's tail goes, `HOLE` where in the tail the checksum belongs. `FITS` is zero where there is no room for them."""
FITS, PATH, FILE_BYTES, HEAD, HEAD_BYTES, PAYLOAD, PAYLOAD_BYTES, TAIL, FOUND, TAIL_BYTES, HOLE, STATE = range(12)
WORKER, ANSWER, FD, SIZE, INODE, MAJOR, MINOR = range(12, 19)
"""What comes back: who took the row; the file's descriptor, or the errno of opening it, and what statx says."""

SCRATCH: Final = 12 * 1024
"""Bytes of memory of its own that each thread brings: a head, vectors, what statx says."""
HEAD_ROOM: Final = 8 * 1024
_VECTORS: Final = HEAD_ROOM
_STATUS: Final = HEAD_ROOM + 1024
_DIGITS: Final = HEAD_ROOM + 2048


class Answer(IntEnum):
    """All but `WAITING` and `READ` are handed back at once, the file still open unless opening it failed."""

    WAITING = 0
    READ = 1
    """Read, right, and closed."""
    FAILED = 2
    """Not open."""
    OPENED = 3
    """Not what was expected, or not all of it could be read without blocking."""
    UNFIT = 4
    """Nobody has opened it."""


_READ, _FAILED, _OPENED, _UNFIT = int(Answer.READ), int(Answer.FAILED), int(Answer.OPENED), int(Answer.UNFIT)
_NAP_US: Final = 10
_OPEN_FLAGS: Final = 0o2000000  # O_RDONLY | O_CLOEXEC
_INTERRUPTED: Final = 4
_EMPTY_PATH: Final = 0x1000
_SIZE_AND_INODE: Final = 0x100 | 0x200
_SHUT: Final = Gate.SHUT


@dataclass(frozen=True, slots=True)
class Loop:
    """`take(table, gate, scratch, worker, leading)`: reads row after row until one needs somebody's help, and returns
    its number; -1 if no row is left. Not `leading`, it waits for rows until the table is closed. `leading`, it returns
    as soon as another worker has come. `owners` must outlive it."""

    take: Callable[[int, int, int, int, bool], int]
    owners: tuple[object, ...]


def compiled_loop(library: ctypes.CDLL) -> Loop:
    """Raises whatever numba, the C library or xxhash's `library` have against it."""
    from numba import carray, cfunc, njit, types

    c = ctypes.CDLL(None)
    size_t, int_t, pointer_t = ctypes.c_long, ctypes.c_int, ctypes.c_void_p
    preadv2 = declared(c.preadv2, size_t, int_t, pointer_t, int_t, size_t, int_t)
    open_ = declared(c.open, int_t, pointer_t, int_t)
    close_ = declared(c.close, int_t, int_t)
    statx = declared(c.statx, int_t, int_t, pointer_t, int_t, int_t, pointer_t)
    errno_at = declared(c.__errno_location, ctypes.POINTER(ctypes.c_int32))
    memcmp = declared(c.memcmp, int_t, pointer_t, pointer_t, size_t)
    memcpy = declared(c.memcpy, pointer_t, pointer_t, pointer_t, size_t)
    lock = declared(c.pthread_mutex_lock, int_t, pointer_t)
    unlock = declared(c.pthread_mutex_unlock, int_t, pointer_t)
    usleep = declared(c.usleep, int_t, ctypes.c_uint32)
    reset = declared(library.XXH3_128bits_reset, int_t, pointer_t)
    # x86 builds choose the widest instructions at run time, under names of their own.
    update = getattr(library, "XXH3_128bits_update_dispatch", None) or library.XXH3_128bits_update
    update = declared(update, int_t, pointer_t, pointer_t, ctypes.c_size_t)
    write_digest = hexadecimal_digest(library)
    i64, u32 = types.int64, types.uint32

    @njit
    def next_row(table, numbers, shut, leading):  # type: ignore[no-untyped-def]  # pragma: no cover
        while True:
            lock(table)
            if not leading:
                numbers[FOLLOWED] = 1
            elif numbers[FOLLOWED] != 0:
                unlock(table)
                return -1
            closed = numbers[CLOSED]  # before READY: whoever adds rows closes last
            ready = numbers[READY]
            index = numbers[NEXT]
            if index < ready:
                numbers[NEXT] = index + 1
            unlock(table)
            if index < ready:
                return index
            if leading or closed != 0 or shut[_SHUT] != 0:
                return -1
            usleep(_NAP_US)

    @njit
    def opened(numbers, row, scratch, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        fd = open_(numbers[row + PATH], _OPEN_FLAGS)
        while fd < 0 and carray(errno_at(), (1,))[0] == _INTERRUPTED:
            fd = open_(numbers[row + PATH], _OPEN_FLAGS)
        if fd < 0:
            numbers[row + ANSWER], numbers[row + FD] = _FAILED, carray(errno_at(), (1,))[0]
            return False
        numbers[row + ANSWER], numbers[row + FD] = _OPENED, fd
        carray(scratch, (SCRATCH,), dtype=types.uint8)[_VECTORS] = 0  # an empty path: the descriptor itself
        if statx(fd, scratch_at + _VECTORS, _EMPTY_PATH, _SIZE_AND_INODE, scratch_at + _STATUS) != 0:
            numbers[row + ANSWER], numbers[row + FD] = _FAILED, carray(errno_at(), (1,))[0]
            close_(fd)
            return False
        status = carray(scratch, (SCRATCH // 4,), dtype=u32)
        at = _STATUS // 4
        numbers[row + INODE] = i64(status[at + 8]) | (i64(status[at + 9]) << 32)
        numbers[row + SIZE] = i64(status[at + 10]) | (i64(status[at + 11]) << 32)
        numbers[row + MAJOR], numbers[row + MINOR] = status[at + 34], status[at + 35]
        return numbers[row + SIZE] == numbers[row + FILE_BYTES]

    @njit
    def has_read(numbers, row, gate, shut, scratch, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        vector = carray(scratch, (SCRATCH // 8,), dtype=i64)
        fd, payload, size, state = (
            types.int32(numbers[row + FD]), numbers[row + PAYLOAD], numbers[row + PAYLOAD_BYTES], numbers[row + STATE],
        )  # fmt: skip
        reset(state)
        at = -numbers[row + HEAD_BYTES]  # in the payload; all steps start at round offsets of the file
        while True:
            last = at + STEP + STEP // 4 >= size
            start, end = max(at, 0), size if last else at + STEP
            v, want = _VECTORS // 8, end - at
            if at < 0:
                vector[v], vector[v + 1] = scratch_at, -at
                v += 2
            vector[v], vector[v + 1] = payload + start, end - start
            v += 2
            if last:
                vector[v], vector[v + 1] = numbers[row + FOUND], numbers[row + TAIL_BYTES]
                v, want = v + 2, want + numbers[row + TAIL_BYTES]
            count, offset, got = (v - _VECTORS // 8) // 2, at + numbers[row + HEAD_BYTES], 0
            lock(gate)
            if shut[_SHUT] == 0:
                got = preadv2(fd, scratch_at + _VECTORS, count, offset, numbers[FLAGS])
            unlock(gate)
            if got != want:
                return False
            update(state, payload + start, end - start)
            if last:
                break
            at = end
        write_digest(state, carray(scratch, (SCRATCH,), dtype=types.uint8), _DIGITS)
        memcpy(numbers[row + TAIL] + numbers[row + HOLE], scratch_at + _DIGITS, CHECKSUM_HEX)
        return (
            memcmp(scratch_at, numbers[row + HEAD], numbers[row + HEAD_BYTES]) == 0
            and memcmp(numbers[row + FOUND], numbers[row + TAIL], numbers[row + TAIL_BYTES]) == 0
        )

    # Addresses come twice: as numbers, which can be added to, and as pointers, which can be looked through.
    @cfunc(types.int32(types.voidptr, types.voidptr, types.voidptr, i64, i64, i64))
    def take(table, gate, scratch, scratch_at, worker, leading):  # type: ignore[no-untyped-def]  # pragma: no cover
        numbers = carray(table, (HEADER + MOST_ROWS * ROW,), dtype=i64)
        shut = carray(gate, (_SHUT + 1,), dtype=i64)
        while True:
            index = next_row(table, numbers, shut, leading)
            if index < 0:
                return -1
            row = HEADER + index * ROW
            numbers[row + WORKER] = worker
            if numbers[row + FITS] == 0:
                numbers[row + ANSWER] = _UNFIT
                return index
            if not opened(numbers, row, scratch, scratch_at):
                return index
            if not has_read(numbers, row, gate, shut, scratch, scratch_at):
                return index
            close_(types.int32(numbers[row + FD]))
            numbers[row + ANSWER] = _READ

    function: Callable[..., int] = cast("Any", take).ctypes

    def call(table: int, gate: int, scratch: int, worker: int, leading: bool) -> int:
        return function(table, gate, scratch, scratch, worker, leading)

    return Loop(call, (take, function))


def declared(function: Any, result: Any, *arguments: Any) -> Any:
    """A function of ctypes with its types."""
    function.restype, function.argtypes = result, arguments
    return function
