"""What becomes of a chunk."""

from enum import Enum


class Put(Enum):
    """What became of one put."""

    STORED = "stored"
    EXISTS = "exists"
    FULL = "full"  # no room, or the pool is pausing because there was none
    FAILED = "failed"  # the file system would not; nothing was published
    ABANDONED = "abandoned"  # the caller went away first; nothing was published


class Get(Enum):
    """What became of one get. Everything but HIT is a miss."""

    HIT = "hit"
    ABSENT = "absent"
    DAMAGED = "damaged"  # short, long, rotten or foreign: set aside
    ERROR = "error"  # EIO, ESTALE and their like
    ABANDONED = "abandoned"
