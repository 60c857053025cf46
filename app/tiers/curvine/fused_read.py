"""One file opened, read, hashed, compared and closed, in compiled code (fused_take.py)."""

from typing import Any, Final

from app.tiers.curvine.chunkfile import CHECKSUM_HEX
from app.tiers.curvine.fused_calls import Calls
from app.tiers.curvine.fused_layout import (
    ANSWER,
    DIGITS,
    FD,
    FILE_BYTES,
    FOUND_HEAD,
    FOUND_TAIL,
    HEAD,
    HEAD_BYTES,
    INODE,
    MAJOR,
    MINOR,
    MOULD_COPY,
    NUMBER_BYTES,
    OPTION,
    PATH,
    PAYLOAD,
    PAYLOAD_BYTES,
    SCRATCH,
    SIZE,
    STAMP,
    STAMP_BYTES,
    STAMP_IN_HEAD,
    STAMP_IN_TAIL,
    STATE,
    STATUS,
    SUM_IN_TAIL,
    TAIL,
    TAIL_BYTES,
    VECTORS,
    Answer,
)
from app.tiers.curvine.landing import Gate

STEP: Final = 512 * 1024
"""What is read is hashed while it is in the core's own cache."""

_DONE, _FAILED, _OPENED = int(Answer.DONE), int(Answer.FAILED), int(Answer.OPENED)
_OPEN_FLAGS: Final = 0o2000000  # O_RDONLY | O_CLOEXEC
_INTERRUPTED: Final = 4
_EMPTY_PATH: Final = 0x1000
_SIZE_AND_INODE: Final = 0x100 | 0x200
_SHUT: Final = Gate.SHUT
_M: Final = MOULD_COPY // NUMBER_BYTES
_V: Final = VECTORS // NUMBER_BYTES


def reading(calls: Calls) -> Any:
    """What `compiled_loop` does with a row of a table that is to be read."""
    from numba import carray, njit, types

    open_, close, statx, preadv2, errno_location = (
        calls.open, calls.close, calls.statx, calls.preadv2, calls.errno_location,
    )  # fmt: skip
    memcmp, memcpy, lock, unlock = calls.memcmp, calls.memcpy, calls.lock, calls.unlock
    reset, update, write_digest = calls.hash_reset, calls.hash_update, calls.write_digest
    i64, i32, u32, u8 = types.int64, types.int32, types.uint32, types.uint8

    @njit
    def opened(numbers, row, scratch, scratch_at, file_bytes):  # type: ignore[no-untyped-def]  # pragma: no cover
        fd = open_(numbers[row + PATH], _OPEN_FLAGS, 0)
        while fd < 0 and carray(errno_location(), (1,))[0] == _INTERRUPTED:
            fd = open_(numbers[row + PATH], _OPEN_FLAGS, 0)
        if fd < 0:
            numbers[row + ANSWER], numbers[row + FD] = _FAILED, carray(errno_location(), (1,))[0]
            return False
        numbers[row + ANSWER], numbers[row + FD] = _OPENED, fd
        carray(scratch, (SCRATCH,), dtype=u8)[VECTORS] = 0  # an empty path: the descriptor itself
        if statx(fd, scratch_at + VECTORS, _EMPTY_PATH, _SIZE_AND_INODE, scratch_at + STATUS) != 0:
            numbers[row + ANSWER], numbers[row + FD] = _FAILED, carray(errno_location(), (1,))[0]
            close(fd)
            return False
        status = carray(scratch, (SCRATCH // 4,), dtype=u32)
        at = STATUS // 4
        numbers[row + INODE] = i64(status[at + 8]) | (i64(status[at + 9]) << 32)
        numbers[row + SIZE] = i64(status[at + 10]) | (i64(status[at + 11]) << 32)
        numbers[row + MAJOR], numbers[row + MINOR] = status[at + 34], status[at + 35]
        return numbers[row + SIZE] == file_bytes

    @njit
    def filled(numbers, row, gate, shut, own, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        fd, payload, size, state = (
            i32(numbers[row + FD]), numbers[row + PAYLOAD], numbers[row + PAYLOAD_BYTES], numbers[row + STATE],
        )  # fmt: skip
        head_bytes, tail_bytes = own[_M + HEAD_BYTES], own[_M + TAIL_BYTES]
        reset(state)
        at = -head_bytes  # in the payload; all steps start at round offsets of the file
        while True:
            last = at + STEP + STEP // 4 >= size
            start, end = max(at, 0), size if last else at + STEP
            v, want = _V, end - at
            if at < 0:
                own[v], own[v + 1] = scratch_at + FOUND_HEAD, -at
                v += 2
            own[v], own[v + 1] = payload + start, end - start
            v += 2
            if last:
                own[v], own[v + 1] = scratch_at + FOUND_TAIL, tail_bytes
                v, want = v + 2, want + tail_bytes
            count, offset, got = (v - _V) // 2, at + head_bytes, 0
            lock(gate)
            if shut[_SHUT] == 0:
                got = preadv2(fd, scratch_at + VECTORS, count, offset, numbers[OPTION])
            unlock(gate)
            if got != want:
                return False
            update(state, payload + start, end - start)
            if last:
                return True
            at = end

    @njit
    def same(found, expected, at, piece, length):  # type: ignore[no-untyped-def]  # pragma: no cover
        """Whether `piece` is at that place; what is expected there by the mould is then put in its place."""
        if memcmp(found + at, piece, length) != 0:
            return False
        memcpy(found + at, expected + at, length)
        return True

    @njit
    def right(numbers, row, own, scratch, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        """Compares head and tail with the expected ones; they come out as the mould's."""
        write_digest(numbers[row + STATE], carray(scratch, (SCRATCH,), dtype=u8), DIGITS)
        head, tail, stamp, stamp_bytes = own[_M + HEAD], own[_M + TAIL], numbers[row + STAMP], own[_M + STAMP_BYTES]
        found_head, found_tail = scratch_at + FOUND_HEAD, scratch_at + FOUND_TAIL
        return (
            same(found_head, head, own[_M + STAMP_IN_HEAD], stamp, stamp_bytes)
            and same(found_tail, tail, own[_M + STAMP_IN_TAIL], stamp, stamp_bytes)
            and same(found_tail, tail, own[_M + SUM_IN_TAIL], scratch_at + DIGITS, CHECKSUM_HEX)
            and memcmp(found_head, head, own[_M + HEAD_BYTES]) == 0
            and memcmp(found_tail, tail, own[_M + TAIL_BYTES]) == 0
        )

    @njit
    def read(numbers, row, gate, shut, scratch, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        own = carray(scratch, (SCRATCH // NUMBER_BYTES,), dtype=i64)
        if not opened(numbers, row, scratch, scratch_at, own[_M + FILE_BYTES]):
            return False
        if not filled(numbers, row, gate, shut, own, scratch_at):
            return False
        if not right(numbers, row, own, scratch, scratch_at):
            return False
        close(i32(numbers[row + FD]))
        numbers[row + ANSWER] = _DONE
        return True

    return read
