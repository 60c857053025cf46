"""One load's chunks, read by several workers."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from app.tiers.curvine import chunkfile
from app.tiers.curvine.fileops import FileOps
from app.tiers.curvine.fused_layout import Answer
from app.tiers.curvine.fused_table import Opened, Taken
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.landing import AbandonedError, Landing
from app.tiers.curvine.portion import PlainTable, Portion
from app.tiers.curvine.transfer import Modes, ShortFileError, read_chunk

_WRONG: Final = "identity or checksum is not the expected one"

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
    inode: int | None = None
    verdict: Verdict = False


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


class Load(Portion[Wanted, Reading]):
    """While a caller has a reading whose verdict is not True, its file is still open, so that its inode number is not
    another's."""

    def __init__(self, fs: FileOps, modes: Modes, *, helped: bool = False) -> None:
        fused = fs.fused()
        super().__init__(PlainTable() if fused is None else fused.to_read(), helped=helped)
        self._fs = fs
        self._modes = modes

    def _add(self, wanted: Wanted) -> None:
        number, chunk, path, into = wanted
        self._rows.append(Reading(number, chunk, path, into))
        self._table.add(chunk, into, path)

    def _done(self, row: Reading, answer: Answer) -> Reading:
        row.verdict = True
        return row

    def _abandoned(self, row: Reading) -> Reading:
        return row

    def _looked_at(self, row: Reading, taken: Taken, landing: Landing) -> Iterator[Reading]:
        file = taken.file
        if file is None:
            file = _open(self._fs, row.path)
        if isinstance(file, OSError):
            row.verdict = file
            yield row
            return
        try:
            row.inode = file.inode
            row.verdict = self._by_hand(file, row, landing)
            yield row
        finally:
            with contextlib.suppress(OSError):
                self._fs.close(file.fd)
            landing.step()

    def _by_hand(self, file: Opened, reading: Reading, landing: Landing) -> Verdict:
        frame = chunkfile.frame(reading.chunk, len(reading.into))
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
