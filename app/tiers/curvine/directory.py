"""The directories and files of a pool, without regard to what is in them.

ROOT/chunks/FAMILY/manifest.json            what the chunks of this family have in common, readable
ROOT/chunks/FAMILY/ab/abcdef...arrow        a chunk
ROOT/tmp/WRITER-n                           being written
ROOT/quarantine/...                         what a reader refused
ROOT/control/...                            between the servers and the janitor, see exchange.py
"""

import contextlib
import errno
import itertools
import json
import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from app.errors import PoolError
from app.tiers.curvine.fileops import OS_FILE_OPS, FileOps
from app.tiers.curvine.identity import Family

logger = logging.getLogger(__name__)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What says "no room" rather than "broken"."""
GONE = frozenset({errno.ENOENT, errno.ENOTDIR})
"""What says "not there"."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A file that was removed, and its size."""

    digest: str
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Found:
    """A published file as a scan sees it."""

    family: str
    digest: str
    file_bytes: int
    mtime: float


@dataclass(frozen=True, slots=True)
class Room:
    """Of the file system, for anybody."""

    total_bytes: int
    free_bytes: int


class PoolDirectory:
    """Everything blocks for as long as the mount pleases. Any thread may call."""

    def __init__(self, root: str | os.PathLike[str], *, fs: FileOps = OS_FILE_OPS, writer: str | None = None) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self.chunks = f"{self.root}/chunks"
        self.tmp = f"{self.root}/tmp"
        self.quarantine = f"{self.root}/quarantine"
        self.writer = writer or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}".replace(".", "-")
        self._fs = fs
        self._serial = itertools.count()
        self._lock = threading.Lock()
        self._writing: set[str] = set()

    def open(self) -> None:
        """Creates the directories. Blocks.

        Raises:
            PoolError: the path cannot be a pool.
        """
        try:
            for directory in (self.chunks, self.tmp, self.quarantine):
                os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise PoolError(
                f"cannot use {self.root} as a pool: {error.strerror}; give a directory that is writable"
            ) from error

    def path_of_file(self, family: str, digest: str) -> str:
        """`path_of` by the names a scan gives."""
        return f"{self.chunks}/{family}/{digest[:2]}/{digest}.arrow"

    def new_temporary(self) -> str:
        """A name for a file that is being written, which is not swept until it is forgotten."""
        name = f"{self.tmp}/{self.writer}-{next(self._serial)}"
        with self._lock:
            self._writing.add(name)
        return name

    def forget_temporary(self, name: str) -> None:
        with self._lock:
            self._writing.discard(name)

    @contextlib.contextmanager
    def temporary(self) -> Iterator[str]:
        """`new_temporary`, forgotten at the end."""
        name = self.new_temporary()
        try:
            yield name
        finally:
            self.forget_temporary(name)

    def create(self, temporary: str) -> int:
        """Opens a new file for writing; the directory is made anew if it is gone. Blocks; raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return self._fs.open(temporary, flags, 0o644)
        except FileNotFoundError:
            # Somebody removed the pool's directory under us: it is a cache, so it simply starts anew.
            self.mkdirs(self.tmp)
            return self._fs.open(temporary, flags, 0o644)

    def mkdirs(self, directory: str) -> None:
        """Blocks; raises OSError."""
        try:
            self._fs.mkdir(directory)
        except FileExistsError:
            return
        except FileNotFoundError:
            self.mkdirs(os.path.dirname(directory))
            with contextlib.suppress(FileExistsError):
                self._fs.mkdir(directory)

    def drop_file(self, family: str, digest: str) -> Dropped | None:
        """`drop` by the names a scan gives."""
        path = self.path_of_file(family, digest)
        try:
            size = self._fs.stat(path).st_size
            self._fs.unlink(path)
        except OSError as error:
            if error.errno not in GONE:
                logger.warning("cannot drop %s: %s", digest, error)
            return None
        return Dropped(digest, size)

    def exists_file(self, family: str, digest: str) -> bool:
        """Whether there is such a file, or nobody can say. Blocks; never raises."""
        try:
            self._fs.stat(self.path_of_file(family, digest))
        except OSError as error:
            return error.errno not in GONE
        return True

    def room(self) -> Room:
        """What the file system says of its space. Blocks; raises OSError."""
        status = self._fs.statvfs(self.root)
        return Room(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)

    def families(self) -> list[Family]:
        """The families on disk with a readable manifest. Blocks; may raise OSError."""
        found = []
        for name in self._names(self.chunks):
            try:
                with open(f"{self.chunks}/{name}/manifest.json", "rb") as source:
                    found.append(Family.from_manifest(json.load(source)))
            except (OSError, ValueError, TypeError, PoolError):
                continue
        return found

    def scan(self, after: str = "") -> Iterator[Found]:
        """Every published file in the order of `family/digest`, from behind `after`. Blocks.

        Raises:
            OSError: something could not be read. Whoever counts must not mistake that for an empty directory.
        """
        start_family, _, start_digest = after.partition("/")
        for family in sorted(self._names(self.chunks)):
            if family < start_family:
                continue
            least = start_digest if family == start_family else ""
            for shard in sorted(self._names(f"{self.chunks}/{family}")):
                if len(shard) == 2 and shard >= least[:2]:
                    yield from self._scan_shard(family, shard, least)

    def _scan_shard(self, family: str, shard: str, least: str) -> Iterator[Found]:
        for name in sorted(self._names(f"{self.chunks}/{family}/{shard}")):
            digest, dot, _ = name.partition(".")
            if not dot or digest <= least:
                continue
            try:
                status = self._fs.stat(f"{self.chunks}/{family}/{shard}/{name}")
            except FileNotFoundError:
                continue
            yield Found(family, digest, status.st_size, status.st_mtime)

    def _names(self, directory: str) -> list[str]:
        try:
            with self._fs.scandir(directory) as entries:
                return [entry.name for entry in entries]
        except OSError as error:
            if error.errno not in GONE:
                raise
            return []

    def sweep(self, older_than_s: float, keep_quarantined: int = 64) -> int:
        """Removes temporaries that no living writer can still want, and all but the newest quarantined files. Ages are
        measured by the file system's own clock, because nodes' clocks differ. Blocks; may raise OSError. Returns
        how many."""
        with self._lock:
            ours = set(self._writing)
        removed = 0
        now = self.filesystem_time()
        for name in self._names(self.tmp):
            path = f"{self.tmp}/{name}"
            with contextlib.suppress(OSError):
                if path not in ours and now - self._fs.stat(path).st_mtime > older_than_s:
                    self._fs.unlink(path)
                    removed += 1
        aside = []
        for name in self._names(self.quarantine):
            with contextlib.suppress(OSError):
                aside.append((self._fs.stat(f"{self.quarantine}/{name}").st_ctime, name))
        for _, name in sorted(aside)[: max(0, len(aside) - keep_quarantined)]:
            with contextlib.suppress(OSError):
                self._fs.unlink(f"{self.quarantine}/{name}")
                removed += 1
        return removed

    def filesystem_time(self) -> float:
        """Seconds by the clock that stamps files here. Blocks; raises OSError."""
        with self.temporary() as path:
            fd = self.create(path)
            try:
                return self._fs.fstat(fd).st_mtime
            finally:
                self._fs.close(fd)
                with contextlib.suppress(OSError):
                    self._fs.unlink(path)

    def probe(self) -> None:
        """One small write, publish, stat, read and list: what the circuit breaker asks before it closes. Blocks.

        Raises:
            OSError: the mount does not work. No room is not that.
        """
        with self.temporary() as temporary:
            published = f"{temporary}.probe"
            try:
                fd = self.create(temporary)
                try:
                    self._fs.writev(fd, [b"probe"])
                finally:
                    self._fs.close(fd)
                self._fs.publish(temporary, published)
                self._fs.stat(published)
                fd = self._fs.open(published, os.O_RDONLY | os.O_CLOEXEC, 0)
                try:
                    buffer = bytearray(5)
                    if self._fs.preadv(fd, [buffer], 0) != 5 or buffer != b"probe":
                        raise OSError(errno.EIO, "the probe came back different")
                finally:
                    self._fs.close(fd)
                with self._fs.scandir(self.tmp) as entries:
                    next(iter(entries), None)
            except OSError as error:
                if error.errno not in FULL:
                    raise
            finally:
                for path in (temporary, published):
                    with contextlib.suppress(OSError):
                        self._fs.unlink(path)
