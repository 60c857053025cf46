"""One worker's run of chunks: opened together, read together, closed together.

files = open_run(...)        every file has an `Opened`, or a `verdict` already
read_run(...)                every file has a verdict
close_run(...)               whoever acts on a verdict does so before: an open file keeps its inode number
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from app.tiers.curvine import chunkfile
from app.tiers.curvine.chunkfile import Frame
from app.tiers.curvine.fileops import FileOps
from app.tiers.curvine.fused import Opened, Wanted
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.landing import AbandonedError, Landing
from app.tiers.curvine.transfer import Modes, ShortFileError, read_chunk, read_together

Verdict: TypeAlias = bool | str | OSError
"""True: the payload is there, verified. False: the caller has gone. A string: why the file is not what it should be."""


@dataclass(slots=True)  # not frozen: made for every chunk, and a frozen one takes three times as long to make
class Reading:
    """A file that is to be read into `into`."""

    chunk: ChunkId
    path: str
    into: memoryview
    frame: Frame
    file: Opened | None = None
    verdict: Verdict = False


def open_run(fs: FileOps, wanted: Iterable[tuple[ChunkId, str, memoryview]]) -> list[Reading]:
    """Opens the files and looks at their sizes. Blocks; raises nothing."""
    run = [Reading(chunk, path, into, chunkfile.frame(chunk, len(into))) for chunk, path, into in wanted]
    for reading, file in zip(run, fs.open_many([reading.path for reading in run]), strict=True):
        if isinstance(file, OSError):
            reading.verdict = file
            continue
        reading.file = file
        if file.size != reading.frame.size:
            reading.verdict = f"{file.size} bytes where {reading.frame.size} were expected"
    return run


def read_run(fs: FileOps, modes: Modes, run: Sequence[Reading], landing: Landing) -> None:
    """Reads all that are open and have no verdict, into their memory until it returns or `landing` is revoked. Blocks;
    raises nothing."""
    left = [(reading, reading.file) for reading in run if reading.file is not None and reading.verdict is False]
    try:
        for device in {file.device for _, file in left}:
            here = [(reading, file) for reading, file in left if file.device == device]
            wanted = [Wanted(file.fd, reading.frame, reading.into) for reading, file in here]
            answers = read_together(fs, modes, device, wanted, landing)
            for (reading, file), want, answer in zip(here, wanted, answers, strict=True):
                reading.verdict = _alone(fs, modes, file, want, landing) if answer is None else _said(answer)
    except AbandonedError:
        return


def _alone(fs: FileOps, modes: Modes, file: Opened, want: Wanted, landing: Landing) -> Verdict:
    try:
        return _said(read_chunk(fs, modes, file.device, want, landing))
    except ShortFileError:
        return "the file ended early"
    except OSError as error:
        return error


def _said(right: bool) -> Verdict:
    return right or "identity or checksum is not the expected one"


def close_run(fs: FileOps, run: Sequence[Reading]) -> None:
    """Blocks; raises nothing: what was read is there."""
    fs.close_many([reading.file.fd for reading in run if reading.file is not None])
