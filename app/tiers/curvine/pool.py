"""The pool: chunks as immutable files in a directory that any number of nodes share.

    absent --put--> writing (tmp) --publish--> ready --drop--> absent
                       |                         +--refused by a reader--> quarantine
                       +--crash--> orphan --sweep--> absent

A published name is never written again, so no lock between nodes is needed: a reader sees a whole file, or none, or
something that its checks refuse. Everything here blocks for as long as the mount pleases and belongs on the guard's
workers; nothing raises for what a file system may do. Any thread may call any method.
"""

import errno
import itertools
import logging
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from app.errors import PoolError
from app.tiers.curvine import chunkfile
from app.tiers.curvine.credit import Credit
from app.tiers.curvine.directory import GONE, Dropped, PoolDirectory
from app.tiers.curvine.fileops import OS_FILE_OPS, FileOps
from app.tiers.curvine.glance import ABSENT
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.outcomes import Get, Put
from app.tiers.curvine.portion import MOST
from app.tiers.curvine.reading import Load, Reading, Wanted
from app.tiers.curvine.transfer import Modes
from app.tiers.curvine.writer import Writer
from app.tiers.curvine.writing import Given, Store

logger = logging.getLogger(__name__)

_REMEMBERED_BAD = 4096


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
        self._forget_bad_s = forget_bad_s
        self._modes = Modes(fs)
        self._counts = _Counts()
        self._writer = Writer(self, fs, credit or Credit(), clock, pause_when_full_s)
        # Files that could not be set aside, so that they cost nothing twice: digest -> when to look again.
        self._bad: OrderedDict[str, float] = OrderedDict()

    def open(self) -> None:
        super().open()
        self._writer.reserves()  # asked here, where it may block, and not by the first store's worker

    def path_of(self, chunk: ChunkId) -> str:
        return f"{self.chunks}/{chunk.family.directory}/{chunk.digest[:2]}/{chunk.digest}.arrow"

    # -- put ------------------------------------------------------------------------------------------------------

    def put(self, chunk: ChunkId, payload: memoryview, landing: Landing) -> Put:
        """Stores one chunk. Reads `payload` until it returns or `landing` is revoked. Blocks; never raises."""
        return self.put_many([chunk], [payload], landing)[0]

    def put_many(self, chunks: Sequence[ChunkId], payloads: Sequence[memoryview], landing: Landing) -> list[Put]:
        given = list(zip(range(len(chunks)), chunks, payloads, strict=True))
        outcomes = dict.fromkeys(range(len(given)), Put.ABANDONED)
        for start in range(0, len(given), MOST):
            self.write(self.store(), landing, outcomes.update, given[start : start + MOST])
        return list(outcomes.values())

    def store(self, *, helped: bool = False) -> Store:
        """For at most `MOST` chunks; for several workers, if `helped`, who call `write`, one of them with what is to be
        stored."""
        return Store(self, self._writer, helped=helped)

    def write(
        self,
        store: Store,
        landing: Landing,
        tell: Callable[[list[tuple[int, Put]]], None],
        given: Iterable[tuple[int, ChunkId, memoryview]] | None = None,
    ) -> None:
        """Stores what no other worker has taken, as `put`, and tells the caller's numbers and outcomes, unless the
        landing has been revoked: then a file that was stored all the same is nobody's, until a scan finds it. `tell`
        is called with the landing's lock held. Blocks; raises nothing but what `given` does."""
        rows = list(store.help(landing) if given is None else store.lead(self._targets(given), landing))
        with self._lock:
            self._counts.puts.update(row.verdict for row in rows)
        with landing.lock:
            heard = not landing.revoked
            if heard:
                tell([(row.number, row.verdict) for row in rows])
        if not heard:
            for row in rows:
                if row.verdict is Put.STORED:
                    self._writer.refund(row.file_bytes)

    def _targets(self, given: Iterable[tuple[int, ChunkId, memoryview]]) -> Iterator[Given]:
        for number, chunk, payload in given:
            yield number, chunk, self.path_of(chunk), payload

    def pausing(self) -> bool:
        """Whether stores are being dropped because the file system had no room a moment ago."""
        return self._writer.pausing()

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

    def load(self, *, helped: bool = False) -> Load:
        """For at most `MOST` chunks; for several workers, if `helped`, who call `read`, one of them with what is
        wanted."""
        return Load(self._fs, self._modes, helped=helped)

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
        return [
            self._fits(chunk, payload_bytes, self._file_bytes(chunk))
            for chunk, payload_bytes in zip(chunks, sizes or itertools.repeat(None), strict=False)
        ]

    def has_at_once(self, chunks: Sequence[ChunkId], sizes: Sequence[int | None]) -> list[bool] | None:
        """`has_many` if the kernel can tell without asking the file system, else None. Never blocks, never raises: what
        it tells says nothing of whether the file system still answers."""
        size_at_once, found = self._fs.size_at_once, []
        for chunk, payload_bytes in zip(chunks, sizes, strict=True):
            size = size_at_once(self.path_of(chunk))
            if size is None:
                return None
            found.append(self._fits(chunk, payload_bytes, size))
        return found

    def _file_bytes(self, chunk: ChunkId) -> int:
        """`ABSENT` if there is none. Blocks; raises OSError."""
        try:
            return self._fs.stat(self.path_of(chunk)).st_size
        except OSError as error:
            if error.errno in GONE:
                return ABSENT
            raise

    def _fits(self, chunk: ChunkId, payload_bytes: int | None, file_bytes: int) -> bool:
        if self._bad and self._is_bad(chunk.digest):
            return False
        # An empty file is what some file systems leave of an unsynced one after a power cut.
        return file_bytes > 0 if payload_bytes is None else file_bytes == chunkfile.frame(chunk, payload_bytes).size

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
