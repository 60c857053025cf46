"""What killed processes have left in /dev/shm: files of Python's and ours that no process has mapped any more.

A killed engine leaves a semaphore (32 bytes), vLLM's multi-process executor a segment (160 MB) as well. Their names
tell no owner, so they may be another program's: they are told, and removed only on demand. Whoever shares /dev/shm from
another container is not seen here.
"""

import os
import time
from pathlib import Path

import psutil

from app.local.leftovers import PLACE, segments_of

# Of multiprocessing: a semaphore, a shared memory block. And the L1 pool of a cache server of ours.
_NAMES = ("sem.mp-*", "psm_*", "lmcache_l1_pool_tierserve-*")
# One that was made a moment ago may be about to be mapped.
_YOUNG_S = 60.0


def orphans() -> set[Path]:
    """Of this user, by name. Another user's processes are not looked into, but could not open these either."""
    now = time.time()
    old = {path for name in _NAMES for path in PLACE.glob(name) if _is_own(path, before=now - _YOUNG_S)}
    return old - segments_of(list(psutil.process_iter())) if old else set()


def _is_own(path: Path, before: float) -> bool:
    try:
        found = path.stat()
    except OSError:  # gone since it was listed
        return False
    return found.st_uid == os.getuid() and found.st_mtime < before


def told(paths: set[Path]) -> str:
    """How many they are and how much memory they take, as a person reads it."""
    taken = sum(path.stat().st_blocks * 512 for path in paths if path.exists())
    return f"{len(paths)} file{'' if len(paths) == 1 else 's'} of killed processes ({taken / 2**20:,.1f} MiB)"
