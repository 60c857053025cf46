"""A FUSE file system that passes everything through to a directory, and misbehaves on request.

    python -m tests.tiers.curvine.faultfs BACKING MOUNTPOINT CONTROL [SECONDS]

A file CONTROL/<operation> makes that operation misbehave for as long as it exists; its content says how: an errno
name, `hang`, or `short` (read returns half, write takes half). The kernel may remember names and sizes for so many
seconds, by default none. The operations are FUSE's: getattr, readdir, open, create, read, write, flush, rename,
unlink, mkdir, statfs.
"""

import errno
import os
import sys
import time
from typing import Any

import mfusepy

_NOREPLACE = 1
_STAT = ("st_atime_ns", "st_ctime_ns", "st_mtime_ns")


class FaultFuse(mfusepy.FUSE):  # type: ignore[misc]
    """Passes the flags of renameat2 on, which mfusepy drops."""

    def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
        return int(self.operations.rename_flags(os.fsdecode(old), os.fsdecode(new), flags))


class FaultFs(mfusepy.Operations):  # type: ignore[misc]
    use_ns = True

    def __init__(self, backing: str, control: str) -> None:
        self._backing = backing
        self._control = control

    def _fault(self, operation: str) -> str:
        """Hangs or raises as told; returns the word otherwise."""
        path = f"{self._control}/{operation}"
        while True:
            try:
                with open(path) as source:
                    word = source.read().strip()
            except FileNotFoundError:
                return ""
            if word != "hang":
                break
            time.sleep(0.01)
        if hasattr(errno, word):
            raise mfusepy.FuseOSError(getattr(errno, word))
        return word

    def _at(self, path: str) -> str:
        return self._backing + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        self._fault("getattr")
        status = os.lstat(self._at(path))
        fields: dict[str, Any] = {
            name: getattr(status, name) for name in ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino")
        }
        for name in _STAT:
            fields[name.removesuffix("_ns")] = getattr(status, name)
        return fields

    def readdir(self, path: str, fh: int) -> list[str]:
        self._fault("readdir")
        return [".", "..", *os.listdir(self._at(path))]

    def open(self, path: str, flags: int) -> int:
        self._fault("open")
        return os.open(self._at(path), flags)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._fault("create")
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        half = self._fault("read") == "short"
        return os.pread(fh, size // 2 if half else size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        half = self._fault("write") == "short"
        return os.pwrite(fh, data[: len(data) // 2] if half else data, offset)

    def flush(self, path: str, fh: int) -> int:
        self._fault("flush")
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def rename_flags(self, old: str, new: str, flags: int) -> int:
        self._fault("rename")
        if flags & _NOREPLACE:
            try:
                os.link(self._at(old), self._at(new))
            except FileExistsError:
                raise mfusepy.FuseOSError(errno.EEXIST) from None
            os.unlink(self._at(old))
        else:
            os.rename(self._at(old), self._at(new))
        return 0

    def rename(self, old: str, new: str) -> int:
        return self.rename_flags(old, new, 0)

    def unlink(self, path: str) -> int:
        self._fault("unlink")
        os.unlink(self._at(path))
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self._fault("mkdir")
        os.mkdir(self._at(path), mode)
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._at(path))
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._at(path), length)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self._at(path), ns=times or (time.time_ns(), time.time_ns()))
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        self._fault("statfs")
        status = os.statvfs(self._at(path))
        return {name: getattr(status, name) for name in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail")}


if __name__ == "__main__":
    remembered_s = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    FaultFuse(
        FaultFs(sys.argv[1], sys.argv[3]),
        sys.argv[2],
        foreground=True,
        attr_timeout=remembered_s,
        entry_timeout=remembered_s,
        nothreads=False,
    )
