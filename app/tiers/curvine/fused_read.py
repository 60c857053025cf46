"""One file opened, read, hashed, compared and closed, in compiled code (fused_take.py)."""

from typing import Any, Final

from app.tiers.curvine import fused_layout as at
from app.tiers.curvine.chunkfile import CHECKSUM_HEX
from app.tiers.curvine.fused_calls import Calls
from app.tiers.curvine.fused_layout import Answer
from app.tiers.curvine.fused_step import laying_out
from app.tiers.curvine.landing import Gate

STEP: Final = 512 * 1024
"""What is read is hashed while it is in the core's own cache."""

_DONE, _FAILED, _OPENED = int(Answer.DONE), int(Answer.FAILED), int(Answer.OPENED)
_OPEN_FLAGS: Final = 0o2000000  # O_RDONLY | O_CLOEXEC
_INTERRUPTED: Final = 4
_EMPTY_PATH: Final = 0x1000
_SIZE_AND_INODE: Final = 0x100 | 0x200
_SHUT: Final = Gate.SHUT
_M: Final = at.MOULD_COPY // at.NUMBER_BYTES


def reading(calls: Calls) -> Any:
    """What `compiled_loop` does with a row of a table that is to be read."""
    from numba import carray, njit, types

    open_, close, statx, preadv2, errno_location = (
        calls.open, calls.close, calls.statx, calls.preadv2, calls.errno_location,
    )  # fmt: skip
    memcmp, memcpy, lock, unlock = calls.memcmp, calls.memcpy, calls.lock, calls.unlock
    reset, update, write_digest = calls.hash_reset, calls.hash_update, calls.write_digest
    laid_out = laying_out()
    i64, i32, u32, u8 = types.int64, types.int32, types.uint32, types.uint8

    @njit
    def opened(numbers, row, scratch, scratch_at, file_bytes):  # type: ignore[no-untyped-def]  # pragma: no cover
        fd = open_(numbers[row + at.PATH], _OPEN_FLAGS, 0)
        while fd < 0 and carray(errno_location(), (1,))[0] == _INTERRUPTED:
            fd = open_(numbers[row + at.PATH], _OPEN_FLAGS, 0)
        if fd < 0:
            numbers[row + at.ANSWER], numbers[row + at.FD] = _FAILED, carray(errno_location(), (1,))[0]
            return False
        numbers[row + at.ANSWER], numbers[row + at.FD] = _OPENED, fd
        carray(scratch, (at.SCRATCH,), dtype=u8)[at.VECTORS] = 0  # an empty path: the descriptor itself
        if statx(fd, scratch_at + at.VECTORS, _EMPTY_PATH, _SIZE_AND_INODE, scratch_at + at.STATUS) != 0:
            numbers[row + at.ANSWER], numbers[row + at.FD] = _FAILED, carray(errno_location(), (1,))[0]
            close(fd)
            return False
        status = carray(scratch, (at.SCRATCH // 4,), dtype=u32)
        first = at.STATUS // 4
        numbers[row + at.INODE] = i64(status[first + 8]) | (i64(status[first + 9]) << 32)
        numbers[row + at.SIZE] = i64(status[first + 10]) | (i64(status[first + 11]) << 32)
        numbers[row + at.MAJOR], numbers[row + at.MINOR] = status[first + 34], status[first + 35]
        return numbers[row + at.SIZE] == file_bytes

    @njit
    def filled(numbers, row, gate, shut, own, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        fd, state = i32(numbers[row + at.FD]), numbers[row + at.STATE]
        payload, size = numbers[row + at.PAYLOAD], numbers[row + at.PAYLOAD_BYTES]
        head_bytes = own[_M + at.HEAD_BYTES]
        reset(state)
        here = -head_bytes
        while True:
            last = here + STEP + STEP // 4 >= size
            start, end = max(here, 0), size if last else here + STEP
            count, want = laid_out(own, scratch_at, payload, here, end, last)
            offset, got = here + head_bytes, 0
            lock(gate)
            if shut[_SHUT] == 0:
                got = preadv2(fd, scratch_at + at.VECTORS, count, offset, numbers[at.OPTION])
            unlock(gate)
            if got != want:
                return False
            update(state, payload + start, end - start)
            if last:
                return True
            here = end

    @njit
    def same(found, expected, place, piece, length):  # type: ignore[no-untyped-def]  # pragma: no cover
        """Whether `piece` is at that place; what is expected there by the mould is then put in its place."""
        if memcmp(found + place, piece, length) != 0:
            return False
        memcpy(found + place, expected + place, length)
        return True

    @njit
    def right(numbers, row, own, scratch, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        """Compares head and tail with the expected ones; they come out as the mould's."""
        write_digest(numbers[row + at.STATE], carray(scratch, (at.SCRATCH,), dtype=u8), at.DIGITS)
        head, tail, stamp, stamp_bytes = (
            own[_M + at.HEAD],
            own[_M + at.TAIL],
            numbers[row + at.STAMP],
            own[_M + at.STAMP_BYTES],
        )
        found_head, found_tail = scratch_at + at.FOUND_HEAD, scratch_at + at.FOUND_TAIL
        return (
            same(found_head, head, own[_M + at.STAMP_IN_HEAD], stamp, stamp_bytes)
            and same(found_tail, tail, own[_M + at.STAMP_IN_TAIL], stamp, stamp_bytes)
            and same(found_tail, tail, own[_M + at.SUM_IN_TAIL], scratch_at + at.DIGITS, CHECKSUM_HEX)
            and memcmp(found_head, head, own[_M + at.HEAD_BYTES]) == 0
            and memcmp(found_tail, tail, own[_M + at.TAIL_BYTES]) == 0
        )

    @njit
    def read(numbers, row, gate, shut, scratch, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        own = carray(scratch, (at.SCRATCH // at.NUMBER_BYTES,), dtype=i64)
        if not opened(numbers, row, scratch, scratch_at, own[_M + at.FILE_BYTES]):
            return False
        if not filled(numbers, row, gate, shut, own, scratch_at):
            return False
        if not right(numbers, row, own, scratch, scratch_at):
            return False
        close(i32(numbers[row + at.FD]))
        numbers[row + at.ANSWER] = _DONE
        return True

    return read
