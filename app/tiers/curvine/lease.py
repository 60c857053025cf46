"""Who is the one janitor of a pool: a file, for want of anything better that all nodes share.

    none --publish--> held by A --A renews: touches it--> held by A --not touched for `ttl_s`--> taken by B

Ages are measured by the file system's clock. Two janitors at once are possible in theory, when one stalls for longer
than the lease and wakes up in the middle of a tick; they would evict more than needed and nothing worse.
"""

import contextlib
import os
from collections.abc import Callable

from app.tiers.curvine.fileops import OS_FILE_OPS, FileOps


class Lease:
    """One contender. One thread; every method blocks on the file system and may raise OSError."""

    def __init__(
        self,
        path: str,
        owner: str,
        filesystem_time: Callable[[], float],
        *,
        ttl_s: float = 10.0,
        fs: FileOps = OS_FILE_OPS,
    ) -> None:
        self._path = path
        self._owner = owner
        self._time = filesystem_time
        self._ttl_s = ttl_s
        self._fs = fs

    def hold(self) -> bool:
        """Takes or renews the lease if possible; whether it is ours now."""
        holder = self.holder()
        if holder == self._owner:
            os.utime(self._path)
            return True
        if holder is None:
            return self._take()
        if self._time() - self._fs.stat(self._path).st_mtime <= self._ttl_s:
            return False
        self._remove(holder)
        return self._take()

    def holder(self) -> str | None:
        """Who holds it, fresh or stale; None if nobody does."""
        try:
            with open(self._path) as source:
                return source.read()
        except FileNotFoundError:
            return None

    def _take(self) -> bool:
        temporary = f"{self._path}.{self._owner}"
        with open(temporary, "w") as sink:
            sink.write(self._owner)
        try:
            return self._fs.publish(temporary, self._path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._fs.unlink(temporary)

    def _remove(self, stale: str) -> None:
        """Renames the stale lease away, which only one contender can; and puts it back if it was renewed or replaced in
        between, which the content tells."""
        aside = f"{self._path}.stale.{self._owner}"
        try:
            self._fs.rename(self._path, aside)
        except FileNotFoundError:
            return
        with open(aside) as source:
            taken = source.read()
        if taken != stale:
            self._fs.publish(aside, self._path)
        with contextlib.suppress(FileNotFoundError):
            self._fs.unlink(aside)

    def release(self) -> None:
        """Gives up the lease if it is ours."""
        if self.holder() == self._owner:
            with contextlib.suppress(FileNotFoundError):
                self._fs.unlink(self._path)
