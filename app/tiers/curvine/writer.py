"""Stores one chunk, step by step: temporary, whole content, close, rename that never replaces."""

import contextlib
import json
import logging
import os
from collections.abc import Callable

from app.tiers.curvine.chunkfile import Frame
from app.tiers.curvine.credit import Credit
from app.tiers.curvine.directory import FULL, PoolDirectory
from app.tiers.curvine.fileops import FileOps
from app.tiers.curvine.identity import Family
from app.tiers.curvine.landing import AbandonedError, Landing
from app.tiers.curvine.outcomes import Put
from app.tiers.curvine.transfer import write_chunk

logger = logging.getLogger(__name__)


class Writer:
    """One for a pool. Any thread; what touches the file system blocks for as long as it pleases, and raises nothing for
    what it does."""

    def __init__(
        self, directory: PoolDirectory, fs: FileOps, credit: Credit, clock: Callable[[], float], pause_s: float
    ) -> None:
        """While a full file system pauses stores, for `pause_s` at a time, and when `credit` is used up, nothing is
        admitted."""
        self.fs = fs
        self._directory = directory
        self._credit = credit
        self._clock = clock
        self._pause_s = pause_s
        self._full_until = 0.0
        self._reserves: bool | None = None

    def pausing(self) -> bool:
        """Whether stores are being dropped because the file system had no room a moment ago."""
        return self._clock() < self._full_until

    def admit(self, file_bytes: int) -> bool:
        """Whether a file of that size may be written. Does not touch the file system."""
        return not self.pausing() and self._credit.admit(file_bytes)

    def refund(self, file_bytes: int) -> None:
        """For a file that was admitted and not published, or published without anybody being told."""
        self._credit.refund(file_bytes)

    def reserves(self) -> bool:
        """Whether room for files is worth reserving in advance here. Blocks until the file system has said so once."""
        if self._reserves is None:
            try:
                fd = self.fs.open(self._directory.tmp, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, 0)
            except OSError:
                return False
            try:
                self._reserves = self.fs.can_reserve(fd)
            finally:
                self.fs.close(fd)
        return self._reserves

    def put(self, frame: Frame, payload: memoryview, target: str, temporary: str, landing: Landing) -> Put:
        """Stores an admitted chunk. Reads `payload` until it returns or `landing` is revoked."""
        try:
            with contextlib.suppress(FileNotFoundError):
                self.fs.stat(target)
                return Put.EXISTS
            return self._write_and_publish(frame, payload, target, temporary, landing)
        except AbandonedError:
            return Put.ABANDONED
        except OSError as error:
            return self.failed(error)

    def exists(self, target: str) -> Put:
        """Of a chunk that was not admitted."""
        try:
            self.fs.stat(target)
        except FileNotFoundError:
            return Put.FULL
        except OSError as error:
            return self.failed(error)
        return Put.EXISTS

    def publish(self, temporary: str, target: str, family: Family) -> Put:
        """Gives a whole temporary its name. It is gone afterwards, whatever happens."""
        published = False
        try:
            published = self._publish(temporary, target, family)
        except OSError as error:
            return self.failed(error)
        finally:
            if not published:
                with contextlib.suppress(OSError):
                    self.fs.unlink(temporary)
        return Put.STORED if published else Put.EXISTS

    def failed(self, error: OSError) -> Put:
        """What a failure means. Stops storing for a while if there is no room."""
        if error.errno in FULL:
            resumed = not self.pausing()
            self._full_until = self._clock() + self._pause_s
            if resumed:
                root = self._directory.root
                logger.warning("%s is full: not storing for %.1f s at a time, still serving", root, self._pause_s)
            return Put.FULL
        logger.warning("put failed: %s", error)
        return Put.FAILED

    def _write_and_publish(
        self, frame: Frame, payload: memoryview, target: str, temporary: str, landing: Landing
    ) -> Put:
        whole = False
        reserves = self.reserves()
        fd = self._directory.create(temporary)
        try:
            try:
                if reserves:
                    self.fs.reserve(fd, frame.size)
                write_chunk(self.fs, fd, frame, payload, landing)
            finally:
                # close() is the flush: Curvine publishes the length here, and reports what it could not write.
                self.fs.close(fd)
            landing.check()
            whole = True
        finally:
            if not whole:
                with contextlib.suppress(OSError):
                    self.fs.unlink(temporary)
        return self.publish(temporary, target, frame.chunk.family)

    def _publish(self, temporary: str, target: str, family: Family) -> bool:
        try:
            return self.fs.publish(temporary, target)
        except FileNotFoundError:
            self._directory.mkdirs(os.path.dirname(target))
            self._write_manifest(family)
            return self.fs.publish(temporary, target)

    def _write_manifest(self, family: Family) -> None:
        target = f"{self._directory.chunks}/{family.directory}/manifest.json"
        with contextlib.suppress(OSError):
            self.fs.stat(target)
            return
        with self._directory.temporary() as temporary:
            try:
                fd = self._directory.create(temporary)
                try:
                    self.fs.writev(fd, [json.dumps(family.manifest(), indent=1, sort_keys=True).encode() + b"\n"])
                finally:
                    self.fs.close(fd)
                if self.fs.publish(temporary, target):
                    return
            except OSError as error:
                # The manifest is for people: every file holds its whole identity.
                logger.warning("no manifest for %s: %s", family.directory, error)
            with contextlib.suppress(OSError):
                self.fs.unlink(temporary)
