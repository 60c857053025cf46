"""The pool: chunks as immutable files in a directory that any number of nodes share.

    absent --put--> writing (tmp) --publish--> ready --drop--> absent
                       |                         +--refused by a reader--> quarantine
                       +--crash--> orphan --sweep--> absent

A published name is never written again, so no lock between nodes is needed: a reader sees a whole file, or none, or
something that its checks refuse. Everything here blocks for as long as the mount pleases and belongs on the guard's
workers; nothing raises for what a file system may do. Any thread may call any method.
"""

import contextlib
import errno
import itertools
import json
import logging
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from app.errors import PoolError
from app.tiers.curvine import chunkfile
from app.tiers.curvine.chunkfile import Frame
from app.tiers.curvine.credit import Credit
from app.tiers.curvine.directory import FULL, GONE, Dropped, PoolDirectory
from app.tiers.curvine.fileops import OS_FILE_OPS, FileOps
from app.tiers.curvine.identity import ChunkId, Family
from app.tiers.curvine.landing import AbandonedError, Landing
from app.tiers.curvine.reading import MOST, Load, Reading, Wanted
from app.tiers.curvine.transfer import Modes, write_chunk

logger = logging.getLogger(__name__)

_REMEMBERED_BAD = 4096


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


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Counts since the pool was opened."""

    puts: dict[str, int]
    gets: dict[str, int]
    set_aside: int


@dataclass(slots=True)
class _Counts:
    puts: Counter[Put] = field(default_factory=Counter)
    gets: Counter[Get] = field(default_factory=Counter)
    set_aside: int = 0


class Pool(PoolDirectory):
    """See the module. `clock` is monotonic seconds; `admit` may refuse a put before it starts (the janitor's
    credit)."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        fs: FileOps = OS_FILE_OPS,
        clock: Callable[[], float] = time.monotonic,
        credit: Credit | None = None,
        pause_when_full_s: float = 2.0,
        forget_bad_s: float = 60.0,
        writer: str | None = None,
    ) -> None:
        super().__init__(root, fs=fs, writer=writer)
        self._clock = clock
        self._credit = credit or Credit()
        self._pause_s = pause_when_full_s
        self._forget_bad_s = forget_bad_s
        self._modes = Modes(fs)
        self._counts = _Counts()
        self._full_until = 0.0
        self._reserves: bool | None = None  # until the first file says what file system this is
        # Files that could not be set aside, so that they cost nothing twice: digest -> when to look again.
        self._bad: OrderedDict[str, float] = OrderedDict()

    def path_of(self, chunk: ChunkId) -> str:
        return f"{self.chunks}/{chunk.family.directory}/{chunk.digest[:2]}/{chunk.digest}.arrow"

    # -- put ------------------------------------------------------------------------------------------------------

    def put(self, chunk: ChunkId, payload: memoryview, landing: Landing) -> Put:
        """Stores one chunk. Reads `payload` until it returns or `landing` is revoked. Blocks; never raises."""
        try:
            outcome = self._put(chunk, payload, landing)
        except AbandonedError:
            outcome = Put.ABANDONED
        except OSError as error:
            outcome = self._put_failed(error)
        with self._lock:
            self._counts.puts[outcome] += 1
        return outcome

    def put_many(self, chunks: Sequence[ChunkId], payloads: Sequence[memoryview], landing: Landing) -> list[Put]:
        return [self.put(chunk, payload, landing) for chunk, payload in zip(chunks, payloads, strict=True)]

    def _put(self, chunk: ChunkId, payload: memoryview, landing: Landing) -> Put:
        target = self.path_of(chunk)
        frame = chunkfile.frame(chunk, len(payload))
        with contextlib.suppress(FileNotFoundError):
            self._fs.stat(target)
            return Put.EXISTS
        if self.pausing() or not self._credit.admit(frame.size):
            return Put.FULL
        outcome = Put.FAILED
        try:
            outcome = self._write(target, frame, payload, landing)
        finally:
            if outcome is not Put.STORED:
                self._credit.refund(frame.size)
        return outcome

    def _write(self, target: str, frame: Frame, payload: memoryview, landing: Landing) -> Put:
        temporary = self._temporary()
        with self._lock:
            self._writing.add(temporary)
        try:
            return self._write_and_publish(temporary, target, frame, payload, landing)
        finally:
            with self._lock:
                self._writing.discard(temporary)

    def _write_and_publish(
        self, temporary: str, target: str, frame: Frame, payload: memoryview, landing: Landing
    ) -> Put:
        published = False
        try:
            fd = self._create(temporary)
            try:
                if self._reserves is None:
                    self._reserves = self._fs.can_reserve(fd)
                if self._reserves:
                    self._fs.reserve(fd, frame.size)
                write_chunk(self._fs, fd, frame, payload, landing)
            finally:
                # close() is the flush: Curvine publishes the length here, and reports what it could not write.
                self._fs.close(fd)
            landing.check()
            published = self._publish(temporary, target, frame.chunk.family)
        finally:
            if not published:
                with contextlib.suppress(OSError):
                    self._fs.unlink(temporary)
        return Put.STORED if published else Put.EXISTS

    def _publish(self, temporary: str, target: str, family: Family) -> bool:
        try:
            return self._fs.publish(temporary, target)
        except FileNotFoundError:
            self._mkdirs(os.path.dirname(target))
            self._write_manifest(family)
            return self._fs.publish(temporary, target)

    def _write_manifest(self, family: Family) -> None:
        target = f"{self.chunks}/{family.directory}/manifest.json"
        with contextlib.suppress(OSError):
            self._fs.stat(target)
            return
        temporary = self._temporary()
        try:
            fd = self._fs.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                self._fs.writev(fd, [json.dumps(family.manifest(), indent=1, sort_keys=True).encode() + b"\n"])
            finally:
                self._fs.close(fd)
            if self._fs.publish(temporary, target):
                return
        except OSError as error:
            # The manifest is for people: every file holds its whole identity.
            logger.warning("no manifest for %s: %s", family.directory, error)
        with contextlib.suppress(OSError):
            self._fs.unlink(temporary)

    def _put_failed(self, error: OSError) -> Put:
        if error.errno in FULL:
            with self._lock:
                resumed = self._clock() >= self._full_until
                self._full_until = self._clock() + self._pause_s
            if resumed:
                logger.warning("%s is full: not storing for %.1f s at a time, still serving", self.root, self._pause_s)
            return Put.FULL
        logger.warning("put failed: %s", error)
        return Put.FAILED

    def pausing(self) -> bool:
        """Whether stores are being dropped because the file system had no room a moment ago."""
        return self._clock() < self._full_until

    # -- get ------------------------------------------------------------------------------------------------------

    def get(self, chunk: ChunkId, into: memoryview, landing: Landing) -> Get:
        """Loads one chunk into the caller's memory, verified. Writes to `into` only until it returns or `landing` is
        revoked; on anything but HIT its content is undefined. Blocks; never raises."""
        return self.get_many([(chunk, into)], landing)[0]

    def get_many(self, wanted: Sequence[tuple[ChunkId, memoryview]], landing: Landing) -> list[Get]:
        """`get` for several; in the order of `wanted`."""
        outcomes = [Get.ABSENT] * len(wanted)
        for start in range(0, len(wanted), MOST):
            for number, outcome in self.read(self.load(), landing, wanted[start : start + MOST]):
                outcomes[start + number] = outcome
        return outcomes

    def load(self) -> Load:
        """For at most `MOST` chunks and several workers, who call `read`, one of them with what is wanted."""
        return Load(self._fs, self._modes)

    def read(
        self, load: Load, landing: Landing, wanted: Iterable[tuple[ChunkId, memoryview]] | None = None
    ) -> list[tuple[int, Get]]:
        """Reads what no other worker of the load has taken, as `get`: indices in what is wanted, and outcomes; none for
        what was set aside before. Blocks; raises nothing but what `wanted` does."""
        readings = load.help(landing) if wanted is None else load.lead(self._files(wanted), landing)
        outcomes = [(reading.number, self._got(reading)) for reading in readings]
        with self._lock:
            self._counts.gets.update(outcome for _, outcome in outcomes)
        return outcomes

    def _files(self, wanted: Iterable[tuple[ChunkId, memoryview]]) -> Iterator[Wanted]:
        for number, (chunk, into) in enumerate(wanted):
            if not (self._bad and self._is_bad(chunk.digest)):
                yield number, chunk, self.path_of(chunk), into

    def _got(self, reading: Reading) -> Get:
        """What a verdict means to the caller, and to the file."""
        verdict = reading.verdict
        if verdict is True:
            return Get.HIT
        if verdict is False:
            return Get.ABANDONED
        if isinstance(verdict, str):
            self._set_aside(reading.chunk, reading.path, reading.inode, verdict, keep=True)
            return Get.DAMAGED
        if verdict.errno in GONE:
            return Get.ABSENT
        code = errno.errorcode.get(verdict.errno or 0, "?")
        self._set_aside(reading.chunk, reading.path, reading.inode, f"{code} while reading", keep=False)
        return Get.ERROR

    # -- has ------------------------------------------------------------------------------------------------------

    def has(self, chunk: ChunkId, payload_bytes: int | None = None) -> bool:
        """Whether there is a file of the right size (any size, if the payload's is not known). Blocks; raises nothing
        but what the file system says beyond "not there"."""
        return self.has_many([chunk], [payload_bytes])[0]

    def has_many(self, chunks: Sequence[ChunkId], sizes: Sequence[int | None] | None = None) -> list[bool]:
        """One stat a chunk, whatever the number of files in the pool. `sizes`: the payloads', where known.

        Raises:
            OSError: the file system failed, as opposed to saying no.
        """
        stat, bad = self._fs.stat, self._bad
        found = []
        for chunk, payload_bytes in zip(chunks, sizes or itertools.repeat(None), strict=False):
            if bad and self._is_bad(chunk.digest):
                found.append(False)
                continue
            try:
                size = stat(self.path_of(chunk)).st_size
            except OSError as error:
                if error.errno not in GONE:
                    raise
                found.append(False)
                continue
            # An empty file is what some file systems leave of an unsynced one after a power cut.
            found.append(size > 0 if payload_bytes is None else size == chunkfile.frame(chunk, payload_bytes).size)
        return found

    # -- drop ----------------------------------------------------------------------------------------------------

    def drop(self, chunk: ChunkId) -> Dropped | None:
        """Removes a chunk; None if it was not there or would not go. Blocks; never raises."""
        return self.drop_file(chunk.family.directory, chunk.digest)

    def drop_many(self, chunks: Sequence[ChunkId]) -> list[Dropped | None]:
        return [self.drop(chunk) for chunk in chunks]

    # -- what readers refused -------------------------------------------------------------------------------------

    def _is_bad(self, digest: str) -> bool:
        until = self._bad.get(digest)
        if until is None:
            return False
        if self._clock() < until:
            return True
        with self._lock:
            self._bad.pop(digest, None)
        return False

    def _set_aside(self, chunk: ChunkId, path: str, inode: int | None, reason: str, *, keep: bool) -> None:
        """Takes a file out of everybody's way, once: into quarantine if there is something to look at, else away."""
        logger.warning("chunk %s of %s: %s; it is a miss and set aside", chunk.digest, chunk.family.model, reason)
        with self._lock:
            self._counts.set_aside += 1
        try:
            if inode is not None and self._fs.stat(path).st_ino != inode:
                return  # already replaced by another file, which deserves its own reading
            if keep:
                self._fs.rename(path, f"{self.quarantine}/{chunk.digest}-{self.writer}-{next(self._serial)}")
                return
        except FileNotFoundError:
            pass
        except OSError:
            self._remember_bad(chunk.digest)
        try:
            self._fs.unlink(path)
        except FileNotFoundError:
            return
        except OSError:
            self._remember_bad(chunk.digest)

    def _remember_bad(self, digest: str) -> None:
        with self._lock:
            self._bad[digest] = self._clock() + self._forget_bad_s
            self._bad.move_to_end(digest)
            while len(self._bad) > _REMEMBERED_BAD:
                self._bad.popitem(last=False)

    # -- what it says of itself -----------------------------------------------------------------------------------

    def stats(self) -> PoolStats:
        with self._lock:
            return PoolStats(
                puts={outcome.value: count for outcome, count in self._counts.puts.items()},
                gets={outcome.value: count for outcome, count in self._counts.gets.items()},
                set_aside=self._counts.set_aside,
            )

    def check_integrity(self) -> None:
        """Reads every file and compares it with its name and its directory. Slow: for tests and `doctor`.

        Raises:
            AssertionError: with the file and what is wrong with it.
        """
        with self._lock:
            writing = set(self._writing)
            assert len(self._bad) <= _REMEMBERED_BAD, len(self._bad)
        for found in self.scan():
            path = self.path_of_file(found.family, found.digest)
            try:
                seen = chunkfile.inspect(path)
            except (PoolError, FileNotFoundError) as error:
                if os.path.exists(path):
                    raise AssertionError(f"{path}: {error}") from error
                continue
            assert self.path_of(seen.chunk) == path, f"{path} holds {seen.chunk}"
            assert seen.file_bytes == found.file_bytes, f"{path}: {seen.file_bytes} != {found.file_bytes}"
        left = {f"{self.tmp}/{name}" for name in self._names(self.tmp) if name.startswith(f"{self.writer}-")}
        assert left <= writing, f"temporaries without a writer: {sorted(left - writing)}"
