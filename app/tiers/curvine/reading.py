"""One load's chunks, read by several workers.

    worker 1: lead -> name, name, ... read, read, ...        names are made in one go, while the code for it is in the
    worker 2:           help -> read, read, read, ...        processor's caches; the others begin meanwhile

Compiled code takes file after file as long as they are in the page cache and right (fused.py). Whatever is not is
looked at here, as is everything where there is no compiled code.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from app.tiers.curvine import chunkfile
from app.tiers.curvine.chunkfile import Frame
from app.tiers.curvine.fileops import FileOps
from app.tiers.curvine.fused import FusedTable, Opened, Taken
from app.tiers.curvine.fused_loop import MOST_ROWS
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.landing import AbandonedError, Landing
from app.tiers.curvine.transfer import Modes, ShortFileError, read_chunk

MOST: Final = MOST_ROWS
"""Chunks of one load: longer ones are several."""
# Whoever prepares never waits for a file system, but may have been given up before it began.
_LOOK_EVERY_S: Final = 0.05

_WRONG: Final = "identity or checksum is not the expected one"
# The others begin when so many are named.
_HEAD_START: Final = 8

Wanted: TypeAlias = tuple[int, ChunkId, str, memoryview]
"""The caller's number for it, the chunk, its file, where its payload belongs."""
Verdict: TypeAlias = bool | str | OSError
"""True: the payload is there, verified. False: the caller has gone. A string: why the file is not what it should be."""


@dataclass(slots=True)  # not frozen: made for every chunk, and a frozen one takes three times as long to make
class Reading:
    """A file that is to be read into `into`."""

    number: int
    chunk: ChunkId
    path: str
    into: memoryview
    frame: Frame
    inode: int | None = None
    verdict: Verdict = False


class _Table(Protocol):
    def add(self, path: str, frame: Frame, payload: memoryview) -> None: ...
    def close(self) -> None: ...
    def take(self, landing: Landing, worker: int, *, leading: bool = False) -> Taken | None: ...
    def finished(self, worker: int) -> Iterable[int]: ...


class _PlainTable:
    """A table whose every row is read by hand, one by one."""

    def __init__(self) -> None:
        self._count = self._next = 0
        self._closed = False
        self._changed = threading.Condition()

    def add(self, path: str, frame: Frame, payload: memoryview) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, landing: Landing, worker: int, *, leading: bool = False) -> Taken | None:
        if leading:  # opening the first file lets go of the interpreter early enough
            return None
        with self._changed:
            while self._next == self._count and not self._closed:
                landing.check()
                self._changed.wait(_LOOK_EVERY_S)
            landing.check()
            if self._next == self._count:
                return None
            self._next += 1
            return Taken(self._next - 1, None)

    def finished(self, worker: int) -> Iterable[int]:
        return ()


def _open(fs: FileOps, path: str) -> Opened | OSError:
    try:
        fd = fs.open(path, os.O_RDONLY | os.O_CLOEXEC, 0)
        try:
            status = fs.fstat(fd)
        except OSError:
            fs.close(fd)
            raise
    except OSError as error:
        return error
    return Opened(fd, status.st_size, status.st_ino, status.st_dev)


class Load:
    """At most `MOST` chunks. One worker calls `lead`, any number `help`. Both read what nobody else has taken yet; each
    chunk is given to one caller, with its verdict. While a caller has one that is not True, its file is still open, so
    that its inode number is not another's. They block for as long as the file system pleases and raise nothing for what
    it does."""

    def __init__(self, fs: FileOps, modes: Modes) -> None:
        self._fs = fs
        self._modes = modes
        self._run: list[Reading] = []
        self._workers = itertools.count(1)
        reader = fs.fused()
        self._table: _Table = _PlainTable() if reader is None else FusedTable(reader)

    def lead(self, wanted: Iterable[Wanted], landing: Landing) -> Iterator[Reading]:
        """Says what the load's chunks are, and reads."""
        worker = next(self._workers)
        try:
            for wanted_one in wanted:
                self._add(*wanted_one)
                if len(self._run) == _HEAD_START:
                    # Reading lets go of the interpreter, so that others begin.
                    yield from self._read(landing, worker, leading=True)
        finally:
            self._table.close()
        yield from self._read(landing, worker)
        yield from self._finished(worker)

    def help(self, landing: Landing) -> Iterator[Reading]:
        worker = next(self._workers)
        yield from self._read(landing, worker)
        yield from self._finished(worker)

    def _add(self, number: int, chunk: ChunkId, path: str, into: memoryview) -> None:
        frame = chunkfile.frame(chunk, len(into))
        self._run.append(Reading(number, chunk, path, into, frame))
        self._table.add(path, frame, into)

    def _read(self, landing: Landing, worker: int, *, leading: bool = False) -> Iterator[Reading]:
        """What needs help."""
        with contextlib.suppress(AbandonedError):
            while (taken := self._table.take(landing, worker, leading=leading)) is not None:
                yield from self._looked_at(self._run[taken.row], taken.file, landing)

    def _finished(self, worker: int) -> Iterator[Reading]:
        """What did not."""
        for row in self._table.finished(worker):
            reading = self._run[row]
            reading.verdict = True
            yield reading

    def _looked_at(self, reading: Reading, file: Opened | OSError | None, landing: Landing) -> Iterator[Reading]:
        if file is None:
            file = _open(self._fs, reading.path)
        if isinstance(file, OSError):
            reading.verdict = file
            yield reading
            return
        try:
            reading.inode = file.inode
            reading.verdict = self._by_hand(file, reading, landing)
            yield reading
        finally:
            with contextlib.suppress(OSError):
                self._fs.close(file.fd)
            landing.step()

    def _by_hand(self, file: Opened, reading: Reading, landing: Landing) -> Verdict:
        frame = reading.frame
        if file.size != frame.size:
            return f"{file.size} bytes where {frame.size} were expected"
        try:
            return read_chunk(self._fs, self._modes, file, frame, reading.into, landing) or _WRONG
        except AbandonedError:
            return False
        except ShortFileError:
            return "the file ended early"
        except OSError as error:
            return error
