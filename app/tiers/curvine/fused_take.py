"""Row after row of a table, by several threads at once: the part that reading and writing share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from app.tiers.curvine.fused_calls import Calls
from app.tiers.curvine.fused_layout import (
    ANSWER,
    CLOCK,
    CLOSED,
    FOLLOWED,
    HEADER,
    LONGEST,
    MOST_ROWS,
    MOULD,
    MOULD_COPY,
    MOULD_NUMBERS,
    NEXT,
    NUMBER_BYTES,
    READY,
    ROW,
    SCRATCH,
    WORKER,
    Answer,
)
from app.tiers.curvine.landing import Gate

_UNFIT: Final = int(Answer.UNFIT)
_SHUT: Final = Gate.SHUT
_NAP_US: Final = 10
_MONOTONIC: Final = 1
_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Loop:
    """`take(table, gate, scratch, worker, leading)`: does row after row until one needs somebody's help, and returns
    its number; -1 if no row is left. Not `leading`, it waits for rows until the table is closed. `leading`, it returns
    as soon as another worker has come. `owners` must outlive it."""

    take: Callable[[int, int, int, int, bool], int]
    owners: tuple[object, ...]


def compiled_loop(calls: Calls, do: Any) -> Loop:
    """`do(numbers, row, gate, shut, scratch, scratch_at)` is compiled code that does one row and says whether it needs
    nobody's help. Raises whatever numba has against it."""
    from numba import carray, cfunc, njit, types

    lock, unlock, usleep, memcpy, clock_gettime = (
        calls.lock, calls.unlock, calls.usleep, calls.memcpy, calls.clock_gettime,
    )  # fmt: skip
    i64 = types.int64

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
    def now(own, scratch_at):  # type: ignore[no-untyped-def]  # pragma: no cover
        clock_gettime(_MONOTONIC, scratch_at + CLOCK)
        return own[CLOCK // NUMBER_BYTES] * _SECOND + own[CLOCK // NUMBER_BYTES + 1]

    # Addresses come twice: as numbers, which can be added to, and as pointers, which can be looked through.
    @cfunc(types.int32(types.voidptr, types.voidptr, types.voidptr, i64, i64, i64))
    def take(table, gate, scratch, scratch_at, worker, leading):  # type: ignore[no-untyped-def]  # pragma: no cover
        numbers = carray(table, (HEADER + MOST_ROWS * ROW,), dtype=i64)
        shut = carray(gate, (_SHUT + 1,), dtype=i64)
        own = carray(scratch, (SCRATCH // NUMBER_BYTES,), dtype=i64)
        own[LONGEST // NUMBER_BYTES] = 0
        while True:
            index = next_row(table, numbers, shut, leading)
            if index < 0:
                return -1
            row = HEADER + index * ROW
            numbers[row + WORKER] = worker
            if numbers[row + MOULD] == 0:
                numbers[row + ANSWER] = _UNFIT
                return index
            memcpy(scratch_at + MOULD_COPY, numbers[row + MOULD], MOULD_NUMBERS * NUMBER_BYTES)
            began = now(own, scratch_at)
            done = do(numbers, row, gate, shut, scratch, scratch_at)
            took = now(own, scratch_at) - began
            if took > own[LONGEST // NUMBER_BYTES]:
                own[LONGEST // NUMBER_BYTES] = took
            if not done:
                return index

    function: Callable[..., int] = cast("Any", take).ctypes

    def call(table: int, gate: int, scratch: int, worker: int, leading: bool) -> int:
        return function(table, gate, scratch, scratch, worker, leading)

    return Loop(call, (take, function))
