"""Where numbers and bytes lie in the memory that Python and the compiled loops share (fused.py).

A table is a header and a row for each file, all 64-bit numbers. What many rows have in common, their head and tail, is
a mould of its own, to which they point.
"""

from enum import IntEnum
from typing import Final

NUMBER_BYTES: Final = 8

NEXT: Final = 8
"""In the header, behind a POSIX mutex: the next row to be taken."""
READY: Final = 9
"""Rows that may be taken."""
CLOSED: Final = 10
"""Not zero once there will be no more rows."""
JOINED: Final = 11
"""Not zero once a worker has come to take rows."""
OPTION: Final = 12
"""Reading: the flags of preadv2. Writing: whether room is reserved in advance."""
HEADER: Final = 16
MOST_ROWS: Final = 64

ROW: Final = 14
"""Numbers in a row. What is asked for is mostly addresses; `MOULD` is zero where there is no room for a row's names."""
MOULD, PATH, TEMPORARY, STAMP, PAYLOAD, PAYLOAD_BYTES, STATE = range(7)
WORKER, ANSWER, FD, SIZE, INODE, MAJOR, MINOR = range(7, 14)
"""What comes back: who took the row; the file's descriptor, or an errno; what statx says of a file that was opened."""

MOULD_NUMBERS: Final = 9
"""In a mould. `STAMP_IN_...` and `SUM_IN_TAIL` are places in head and tail."""
HEAD, HEAD_BYTES, TAIL, TAIL_BYTES, FILE_BYTES, STAMP_BYTES, STAMP_IN_HEAD, STAMP_IN_TAIL, SUM_IN_TAIL = range(9)

AROUND_ROOM: Final = 8 * 1024
"""Bytes of a head or tail."""
FOUND_HEAD: Final = 0
"""In the memory that each thread brings for itself: a head and a tail that are compared or written, and the rest."""
FOUND_TAIL: Final = AROUND_ROOM
VECTORS: Final = 2 * AROUND_ROOM
STATUS: Final = VECTORS + 256
DIGITS: Final = STATUS + 512
MOULD_COPY: Final = DIGITS + 64
CLOCK: Final = MOULD_COPY + MOULD_NUMBERS * NUMBER_BYTES
LONGEST: Final = CLOCK + 16
"""Nanoseconds that the slowest file of a call took."""
SCRATCH: Final = LONGEST + NUMBER_BYTES


class Answer(IntEnum):
    """What became of a row. All from `FAILED` on are handed back at once."""

    WAITING = 0
    DONE = 1
    """Read, right, and closed; or written and published."""
    EXISTS = 2
    """Writing: somebody had it already."""
    FAILED = 3
    """With an errno; nothing is open, and no temporary is left."""
    OPENED = 4
    """Reading: open, but not what was expected, or not all of it could be read without blocking."""
    UNPUBLISHED = 5
    """Writing: the temporary is whole, but its rename was refused, with an errno."""
    SHUT = 6
    """Writing: the caller has gone; nothing is left."""
    UNFIT = 7
    """Nobody has touched it."""
