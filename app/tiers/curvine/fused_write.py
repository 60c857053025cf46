"""One chunk hashed, written to a temporary and published under its name, in compiled code (fused_take.py).

The same steps as `writing.py` takes one by one, which has the reasons. The caller's memory is read until the last
write; a caller who goes meanwhile may change it, so that nothing is published unless the gate is open after that.
"""

from typing import Any, Final

from app.tiers.curvine import fused_layout as at
from app.tiers.curvine.chunkfile import CHECKSUM_HEX
from app.tiers.curvine.fused_calls import Calls
from app.tiers.curvine.fused_layout import Answer
from app.tiers.curvine.fused_step import laying_out
from app.tiers.curvine.landing import Gate

STEP: Final = 256 * 1024
"""What is written is hashed while it is in the core's own cache. And the page cache takes what one call writes in
folios of up to 2 MiB, for which a busy machine may have to make room: 96 MiB took 20 ms in steps of 256 KiB, and in
steps of 2 MiB sometimes 240 (Linux 6.18)."""
REST: Final = 128 * 1024
"""Less than this is done with the step before it: a step costs some microseconds of its own."""

_DONE, _FAILED, _EXISTS = int(Answer.DONE), int(Answer.FAILED), int(Answer.EXISTS)
_UNPUBLISHED, _GONE = int(Answer.UNPUBLISHED), int(Answer.SHUT)
_CREATE_FLAGS: Final = 0o2000301  # O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC
_MODE: Final = 0o644
_AT_FDCWD: Final = -100
_NOREPLACE: Final = 1
_ABSENT, _INTERRUPTED, _INPUT_OUTPUT, _EXISTING, _NOT_A_DIRECTORY, _INVALID = 2, 4, 5, 17, 20, 22
_NO_SUCH_CALL, _NOT_SUPPORTED = 38, 95
_SHUT: Final = Gate.SHUT
_M: Final = at.MOULD_COPY // at.NUMBER_BYTES
_V: Final = at.VECTORS // at.NUMBER_BYTES


def writing(calls: Calls) -> Any:
    """What `compiled_loop` does with a row of a table that is to be written."""
    from numba import carray, njit, types

    open_, close, access, writev, fallocate = calls.open, calls.close, calls.access, calls.writev, calls.fallocate
    renameat2, unlink, errno_location, memcpy = calls.renameat2, calls.unlink, calls.errno_location, calls.memcpy
    reset, update, write_digest = calls.hash_reset, calls.hash_update, calls.write_digest
    laid_out = laying_out()
    i64, i32, u8 = types.int64, types.int32, types.uint8

    @njit
    def errno():  # type: ignore[no-untyped-def]  # pragma: no cover
        return i64(carray(errno_location(), (1,))[0])

    @njit
    def created(path):  # type: ignore[no-untyped-def]  # pragma: no cover
        fd = open_(path, _CREATE_FLAGS, _MODE)
        while fd < 0 and errno() == _INTERRUPTED:
            fd = open_(path, _CREATE_FLAGS, _MODE)
        return fd

    @njit
    def reserved(fd, size):  # type: ignore[no-untyped-def]  # pragma: no cover
        """An errno, or 0."""
        if fallocate(fd, 0, 0, size) == 0:
            return 0
        code = errno()
        if code in (_NOT_SUPPORTED, _NO_SUCH_CALL, _INVALID, _INTERRUPTED):
            return 0
        return code

    @njit
    def all_written(fd, own, scratch_at, count, want):  # type: ignore[no-untyped-def]  # pragma: no cover
        """An errno, or 0."""
        v = 0
        while want > 0:
            got = writev(fd, scratch_at + at.VECTORS + v * 2 * at.NUMBER_BYTES, count - v)
            if got < 0:
                if errno() == _INTERRUPTED:
                    continue
                return errno()
            if got == 0:
                return _INPUT_OUTPUT
            want -= got
            while got > 0:
                step = min(got, own[_V + 2 * v + 1])
                own[_V + 2 * v] += step
                own[_V + 2 * v + 1] -= step
                got -= step
                if own[_V + 2 * v + 1] == 0:
                    v += 1
        return 0

    @njit
    def stamped(numbers, row, own, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        """Head and tail in this thread's memory, but for the checksum."""
        head, tail = scratch_at + at.FOUND_HEAD, scratch_at + at.FOUND_TAIL
        stamp, stamp_bytes = numbers[row + at.STAMP], own[_M + at.STAMP_BYTES]
        memcpy(head, own[_M + at.HEAD], own[_M + at.HEAD_BYTES])
        memcpy(tail, own[_M + at.TAIL], own[_M + at.TAIL_BYTES])
        memcpy(head + own[_M + at.STAMP_IN_HEAD], stamp, stamp_bytes)
        memcpy(tail + own[_M + at.STAMP_IN_TAIL], stamp, stamp_bytes)

    @njit
    def filled(numbers, row, fd, shut, scratch, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        """An errno, or 0; also 0 when the caller has gone."""
        own = carray(scratch, (at.SCRATCH // at.NUMBER_BYTES,), dtype=i64)
        payload, size, state = numbers[row + at.PAYLOAD], numbers[row + at.PAYLOAD_BYTES], numbers[row + at.STATE]
        stamped(numbers, row, own, scratch_at)
        reset(state)
        here = -own[_M + at.HEAD_BYTES]
        while shut[_SHUT] == 0:
            last = here + STEP + REST >= size
            start, end = max(here, 0), size if last else here + STEP
            update(state, payload + start, end - start)
            if last:
                write_digest(state, carray(scratch, (at.SCRATCH,), dtype=u8), at.DIGITS)
                memcpy(scratch_at + at.FOUND_TAIL + own[_M + at.SUM_IN_TAIL], scratch_at + at.DIGITS, CHECKSUM_HEX)
            count, want = laid_out(own, scratch_at, payload, here, end, last)
            code = all_written(fd, own, scratch_at, count, want)
            if code != 0 or last:
                return code
            here = end
        return 0

    @njit
    def failed(numbers, row, code):  # type: ignore[no-untyped-def]  # pragma: no cover
        numbers[row + at.ANSWER], numbers[row + at.FD] = _FAILED, code
        return False

    @njit
    def written(numbers, row, shut, scratch, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        """An errno, or 0; on an errno there is no temporary."""
        temporary = numbers[row + at.TEMPORARY]
        fd = created(temporary)
        if fd < 0:
            return errno()
        code = i64(0)
        if numbers[at.OPTION] != 0:
            code = reserved(fd, carray(scratch, (at.SCRATCH // at.NUMBER_BYTES,), dtype=i64)[_M + at.FILE_BYTES])
        if code == 0:
            code = filled(numbers, row, i32(fd), shut, scratch, scratch_at)
        if close(fd) != 0 and code == 0:
            code = errno()
        if code != 0:
            unlink(temporary)
        return code

    @njit
    def published(numbers, row):  # type: ignore[no-untyped-def]  # pragma: no cover
        temporary = numbers[row + at.TEMPORARY]
        if renameat2(_AT_FDCWD, temporary, _AT_FDCWD, numbers[row + at.PATH], _NOREPLACE) == 0:
            numbers[row + at.ANSWER] = _DONE
            return True
        code = errno()
        if code == _EXISTING:
            unlink(temporary)
            numbers[row + at.ANSWER] = _EXISTS
            return True
        numbers[row + at.ANSWER], numbers[row + at.FD] = _UNPUBLISHED, code
        return False

    @njit
    def write(numbers, row, gate, shut, scratch, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        if access(numbers[row + at.PATH], 0) == 0:
            numbers[row + at.ANSWER] = _EXISTS
            return True
        code = errno()
        if code not in (_ABSENT, _NOT_A_DIRECTORY):
            return failed(numbers, row, code)
        code = written(numbers, row, shut, scratch, scratch_at)
        if code != 0:
            return failed(numbers, row, code)
        if shut[_SHUT] != 0:
            unlink(numbers[row + at.TEMPORARY])
            numbers[row + at.ANSWER] = _GONE
            return False
        return published(numbers, row)

    return write
