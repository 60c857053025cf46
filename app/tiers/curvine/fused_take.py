"""Row after row of a table, by several threads at once: the part that reading and writing share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from app.tiers.curvine import fused_layout as at
from app.tiers.curvine.fused_calls import Calls
from app.tiers.curvine.fused_layout import Answer
from app.tiers.curvine.landing import Gate

_UNFIT: Final = int(Answer.UNFIT)
_SHUT: Final = Gate.SHUT
_NAP_US: Final = 10
# Looks of about a third of a microsecond.
_LOOKS: Final = 300
_MONOTONIC: Final = 1
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Loop:
    """`take(table, gate, scratch, worker)`: does row after row until one needs somebody's help, and returns its number;
    -1 if no row is left. It waits for rows until the table is closed. `gather(table)` returns as soon as somebody has
    come to take rows, or after a tenth of a millisecond. `owners` must outlive it."""

    take: Callable[[int, int, int, int], int]
    gather: Callable[[int], None]
    owners: tuple[object, ...]


def compiled_loop(calls: Calls, do: Any) -> Loop:
    """`do(numbers, row, gate, shut, scratch, scratch_at)` is compiled code that does one row and says whether it needs
    nobody's help. Raises whatever numba has against it."""
    from numba import carray, cfunc, njit, types

    lock, unlock, usleep, sched_yield, memcpy, clock_gettime = (
        calls.lock, calls.unlock, calls.usleep, calls.sched_yield, calls.memcpy, calls.clock_gettime,
    )  # fmt: skip
    i64 = types.int64

    @njit
    def next_row(table, numbers, shut):  # type: ignore[no-untyped-def]  # pragma: no cover
        looks = 0
        while True:
            lock(table)
            numbers[at.JOINED] = 1
            closed = numbers[at.CLOSED]  # before at.READY: whoever adds rows closes last
            ready = numbers[at.READY]
            index = numbers[at.NEXT]
            if index < ready:
                numbers[at.NEXT] = index + 1
            unlock(table)
            if index < ready:
                return index
            if closed != 0 or shut[_SHUT] != 0:
                return -1
            looks += 1
            if looks < _LOOKS:  # sleeping takes longer than the next name
                sched_yield()
            else:
                usleep(_NAP_US)

    @cfunc(types.void(types.voidptr))
    def gather(table):  # type: ignore[no-untyped-def]  # pragma: no cover
        numbers = carray(table, (at.HEADER,), dtype=i64)
        for _ in range(_LOOKS):
            lock(table)
            joined = numbers[at.JOINED]
            unlock(table)
            if joined != 0:
                return
            sched_yield()

    @njit
    def now(own, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        clock_gettime(_MONOTONIC, scratch_at + at.CLOCK)
        return own[at.CLOCK // at.NUMBER_BYTES] * _SECOND + own[at.CLOCK // at.NUMBER_BYTES + 1]

    # Addresses come twice: as numbers, which can be added to, and as pointers, which can be looked through.
    @cfunc(types.int32(types.voidptr, types.voidptr, types.voidptr, i64, i64))
    def take(table, gate, scratch, scratch_at, worker):  # type: ignore[no-untyped-def]  # pragma: no cover
        numbers = carray(table, (at.HEADER + at.MOST_ROWS * at.ROW,), dtype=i64)
        shut = carray(gate, (_SHUT + 1,), dtype=i64)
        own = carray(scratch, (at.SCRATCH // at.NUMBER_BYTES,), dtype=i64)
        own[at.LONGEST // at.NUMBER_BYTES] = 0
        while True:
            index = next_row(table, numbers, shut)
            if index < 0:
                return -1
            row = at.HEADER + index * at.ROW
            numbers[row + at.WORKER] = worker
            if numbers[row + at.MOULD] == 0:
                numbers[row + at.ANSWER] = _UNFIT
                return index
            memcpy(scratch_at + at.MOULD_COPY, numbers[row + at.MOULD], at.MOULD_NUMBERS * at.NUMBER_BYTES)
            began = now(own, scratch_at)
            done = do(numbers, row, gate, shut, scratch, scratch_at)
            took = now(own, scratch_at) - began
            if took > own[at.LONGEST // at.NUMBER_BYTES]:
                own[at.LONGEST // at.NUMBER_BYTES] = took
            if not done:
                return index

    function: Callable[..., int] = cast("Any", take).ctypes

    def call(table: int, gate: int, scratch: int, worker: int) -> int:
        return function(table, gate, scratch, scratch, worker)

    return Loop(call, cast("Any", gather).ctypes, (take, gather))
