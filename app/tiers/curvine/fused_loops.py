"""The loops of `fused.py`, compiled: plain C functions that ctypes calls without the interpreter's lock."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

MOST_FILES: Final = 16
"""In one call."""
STEP: Final = 512 * 1024
"""What is read is hashed while it is in the core's own cache."""
OPEN_ROW: Final = 6
"""Numbers in a row of `open`: descriptor, errno, size, inode, device's major and minor number."""
READ_ROW: Final = 7
"""Numbers in a row of `read`: descriptor, answer, head bytes, payload's place, its bytes, tail bytes, hash state."""
UNREAD: Final = 0
"""An answer: not all of it could be read."""
READ: Final = 1
FOREIGN: Final = 2
"""Read, but its head is not the expected one."""

_INTERRUPTED: Final = 4
_EMPTY_PATH: Final = 0x1000
_SIZE_AND_INODE: Final = 0x100 | 0x200


@dataclass(frozen=True, slots=True)
class Loops:
    """`open(names, count, flags, rows, work)`, `read(heads, count, flags, rows, work, head, tails, tail_room)`,
    `close(fds, count)`. `owners` must outlive them."""

    open: Callable[..., int]
    read: Callable[..., int]
    close: Callable[..., int]
    owners: tuple[object, ...]


def compiled_loops(library: ctypes.CDLL) -> Loops:
    """Raises whatever numba, the C library or xxhash's `library` have against it."""
    from numba import carray, cfunc, types

    c = ctypes.CDLL(None)
    pointer_t, size_t, int_t = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
    preadv2 = _declared(c.preadv2, size_t, int_t, pointer_t, int_t, size_t, int_t)
    open_ = _declared(c.open, int_t, pointer_t, int_t)
    close_ = _declared(c.close, int_t, int_t)
    statx = _declared(c.statx, int_t, int_t, pointer_t, int_t, int_t, pointer_t)
    errno_at = _declared(c.__errno_location, ctypes.POINTER(ctypes.c_int32))
    memcmp = _declared(c.memcmp, int_t, pointer_t, pointer_t, size_t)
    strlen = _declared(c.strlen, size_t, pointer_t)
    reset = _declared(library.XXH3_128bits_reset, int_t, pointer_t)
    # x86 builds choose the widest instructions at run time, under names of their own.
    update_name = "XXH3_128bits_update_dispatch"
    update = getattr(library, update_name, None) or library.XXH3_128bits_update
    update = _declared(update, int_t, pointer_t, pointer_t, ctypes.c_size_t)
    size, integer, pointer = types.intp, types.int32, types.voidptr
    address = types.intp  # a pointer that numbers are added to

    @cfunc(integer(address, size, integer, pointer, pointer))
    def open_run(names, count, flags, rows, work):  # type: ignore[no-untyped-def]  # pragma: no cover
        row = carray(rows, (count, OPEN_ROW), dtype=types.int64)
        status = carray(work, (64,), dtype=types.uint32)
        at = names
        for index in range(count):
            row[index, 1] = 0
            fd = open_(at, flags)
            while fd < 0 and carray(errno_at(), (1,))[0] == _INTERRUPTED:
                fd = open_(at, flags)
            if fd < 0:
                row[index, 1] = carray(errno_at(), (1,))[0]
            else:
                row[index, 0] = fd
                end = at + strlen(at)  # an empty name: the descriptor itself
                if statx(fd, end, _EMPTY_PATH, _SIZE_AND_INODE, work) != 0:
                    row[index, 1] = carray(errno_at(), (1,))[0]
                    close_(fd)
                else:
                    row[index, 2] = types.int64(status[10]) | (types.int64(status[11]) << 32)
                    row[index, 3] = types.int64(status[8]) | (types.int64(status[9]) << 32)
                    row[index, 4], row[index, 5] = status[34], status[35]
            at = at + strlen(at) + 1
        return 0

    @cfunc(integer(address, size, integer, pointer, pointer, address, address, size))
    def read_run(heads, count, flags, rows, work, head, tails, tail_room):  # type: ignore[no-untyped-def]  # pragma: no cover
        row = carray(rows, (count, READ_ROW), dtype=types.int64)
        vector = carray(work, (6,), dtype=types.int64)
        expected = heads
        for index in range(count):
            fd, head_n, payload, payload_n = row[index, 0], row[index, 2], row[index, 3], row[index, 4]
            tail_n, state = row[index, 5], row[index, 6]
            reset(state)
            at = 0
            step = STEP - head_n  # later steps start at round offsets of the file
            while True:
                last = at + step + STEP // 4 >= payload_n
                if last:
                    step = payload_n - at
                n, want, offset = 0, step, at + head_n
                if at == 0:
                    vector[0], vector[1] = head, head_n
                    n, want, offset = 1, want + head_n, 0
                vector[2 * n], vector[2 * n + 1] = payload + at, step
                n += 1
                if last:
                    vector[2 * n], vector[2 * n + 1] = tails + index * tail_room, tail_n
                    n, want = n + 1, want + tail_n
                if preadv2(fd, work, n, offset, flags) != want:
                    break
                update(state, payload + at, step)
                if last:
                    row[index, 1] = READ if memcmp(head, expected, head_n) == 0 else FOREIGN
                    break
                at += step
                step = STEP
            expected = expected + head_n
        return 0

    @cfunc(integer(pointer, size))
    def close_run(fds, count):  # type: ignore[no-untyped-def]  # pragma: no cover
        for fd in carray(fds, (count,), dtype=types.int64):
            close_(fd)
        return 0

    return Loops(open_run.ctypes, read_run.ctypes, close_run.ctypes, (open_run, read_run, close_run))


def _declared(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function
