"""What one system call transfers of a chunk's file: a step of its payload, with the head before the first and the tail
after the last (fused_read.py, fused_write.py)."""

from typing import Any, Final

from app.tiers.curvine import fused_layout as at

_MOULD: Final = at.MOULD_COPY // at.NUMBER_BYTES
_VECTORS: Final = at.VECTORS // at.NUMBER_BYTES


def laying_out() -> Any:
    """Compiled `(own, scratch_at, payload, here, end, last) -> (count, bytes)`: puts into a thread's vectors where the
    step's parts lie in memory. `here` and `end` are places in the payload; the first step's `here` lies before it, by
    the head's length, so that all steps start at round offsets of the file."""
    from numba import njit

    @njit
    def laid_out(own, scratch_at, payload, here, end, last):  # type: ignore[no-untyped-def]  # pragma: no cover
        v, start, whole = _VECTORS, max(here, 0), end - here
        if here < 0:
            own[v], own[v + 1] = scratch_at + at.FOUND_HEAD, -here
            v += 2
        own[v], own[v + 1] = payload + start, end - start
        v += 2
        if last:
            tail_bytes = own[_MOULD + at.TAIL_BYTES]
            own[v], own[v + 1] = scratch_at + at.FOUND_TAIL, tail_bytes
            v, whole = v + 2, whole + tail_bytes
        return (v - _VECTORS) // 2, whole

    return laid_out
