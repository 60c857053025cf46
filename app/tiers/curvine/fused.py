"""Reads and writes chunk files outside the interpreter, several threads from one table.

Whatever a worker does between two system calls needs the interpreter's lock, and code that has left the processor's
caches, because a chunk empties them: reading 64 chunks of 1 MiB took 1.6 times as long as the same reads and hashes in
C. So the interpreter prepares a table of what is wanted (`fused_table.py`), workers take rows of it in compiled code
(`fused_take.py`, `fused_read.py`, `fused_write.py`), and come back only for a file that needs more: one that is not in
the page cache, or a directory that is missing. numba compiles the loops (a few seconds, once a process, before it
serves: beside the first requests it would keep the interpreter from them; LMCache uses numba too), and the hash is
xxhash's own C function. Wherever a part is missing, `reading.py` and `writing.py` do the same file by file.
"""

import ctypes
import functools
import importlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import xxhash

from app.tiers.curvine import chunkfile, fused_calls, fused_read, fused_write
from app.tiers.curvine.fused_calls import declared
from app.tiers.curvine.fused_layout import Answer
from app.tiers.curvine.fused_memory import Memories
from app.tiers.curvine.fused_table import FusedTable
from app.tiers.curvine.fused_take import compiled_loop
from app.tiers.curvine.identity import ChunkId, Family
from app.tiers.curvine.landing import Landing

logger = logging.getLogger(__name__)


class FusedFiles:
    """The compiled parts. Any thread."""

    def __init__(self) -> None:
        """Compiles. Raises whatever numba, ctypes or the installed xxhash have against it."""
        path = str(importlib.import_module("xxhash._xxhash").__file__)
        calls = fused_calls.calls(ctypes.CDLL(path))
        self._read = compiled_loop(calls, fused_read.reading(calls))
        self._write = compiled_loop(calls, fused_write.writing(calls))
        self._memories = Memories(_Short(path))
        _check(self)

    def to_read(self, flags: int = os.RWF_NOWAIT) -> FusedTable:
        """For files that are there. `flags`: of preadv2, which must not block."""
        return FusedTable(self._memories, self._read, flags)

    def to_write(self, *, reserve: bool) -> FusedTable:
        """For new files; `reserve` takes their room in advance."""
        return FusedTable(self._memories, self._write, int(reserve))


class _Short:
    """Calls that are not worth letting go of the interpreter. The lock is held for nanoseconds by others, who never
    want the interpreter meanwhile."""

    def __init__(self, path: str) -> None:
        hashes, c = ctypes.PyDLL(path), ctypes.PyDLL(None)
        pointer = ctypes.c_void_p
        self.new_state: Callable[[], int] = declared(hashes.XXH3_createState, pointer)
        self.free_state: Callable[[int], object] = declared(hashes.XXH3_freeState, ctypes.c_int, pointer)
        self.lock: Callable[[int], object] = declared(c.pthread_mutex_lock, ctypes.c_int, pointer)
        self.unlock: Callable[[int], object] = declared(c.pthread_mutex_unlock, ctypes.c_int, pointer)


def _check(files: FusedFiles) -> None:
    """Raises RuntimeError unless a chunk is written as chunkfile.py spells it, and read as it was."""
    payload = os.urandom(fused_read.STEP + fused_read.STEP // 3)
    chunk = Family.of(model="check", layout=f"uint8[{len(payload)}]").chunk(b"check")
    frame = chunkfile.frame(chunk, len(payload))
    with tempfile.TemporaryDirectory(prefix="tierserve-check-") as directory:
        path = f"{directory}/chunk"
        _all_done(files.to_write(reserve=False), chunk, memoryview(payload), path, f"{path}.new")
        content = frame.head() + payload + frame.tail(xxhash.xxh3_128_hexdigest(payload))
        if Path(path).read_bytes() != content:
            raise RuntimeError("the compiled writer does not write what it was given")
        into = bytearray(len(payload))
        _all_done(files.to_read(flags=0), chunk, memoryview(into), path)  # memory file systems refuse RWF_NOWAIT
        if into != payload:
            raise RuntimeError("the compiled reader does not read what was written")


def _all_done(table: FusedTable, chunk: ChunkId, payload: memoryview, path: str, temporary: str = "") -> None:
    table.add(chunk, payload, path, temporary)
    table.close()
    left = table.take(Landing(), 1)
    if left is not None or table.finished(1) != [(0, Answer.DONE)]:
        raise RuntimeError(f"compiled code handed back a plain file: {left}")


@functools.cache
def fused_files() -> FusedFiles | None:
    """The process's one, compiled by the first call; None where that does not work."""
    try:
        return FusedFiles()
    except Exception as error:
        logger.info("chunks are read and written step by step, a little slower: %s", error)
        return None
