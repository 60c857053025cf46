"""The file-system edge: every call the pool makes into the kernel, in one object that tests replace.

All methods may block for as long as the mount pleases, and raise OSError. Nothing here touches the caller's thread
rules: deadlines are the guard's business.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from app.tiers.curvine import fused
from app.tiers.curvine.fused import FusedFiles
from app.tiers.curvine.glance import Glance

_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
# Memory file systems refuse RWF_NOWAIT, yet cannot hang: there is no device or daemon behind them.
_MEMORY_MAGIC = {0x01021994, 0x858458F6}
# ext4 writes a file whose room was reserved in one go a quarter faster. Elsewhere it was not measured, and a FUSE mount
# may answer by writing zeros.
_PRESIZED_MAGIC = {0xEF53}

_libc = ctypes.CDLL(None, use_errno=True)
_renameat2: Callable[..., int] | None = getattr(_libc, "renameat2", None)
_fallocate = getattr(_libc, "fallocate", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class FileOps:
    """The kernel's own calls. Static attributes: a call costs no extra frame on the hot path. Tests subclass it."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    fstat = staticmethod(os.fstat)
    stat = staticmethod(os.stat)
    writev = staticmethod(os.writev)
    preadv = staticmethod(os.preadv)
    unlink = staticmethod(os.unlink)
    rename = staticmethod(os.rename)
    statvfs = staticmethod(os.statvfs)
    fsync = staticmethod(os.fsync)
    mkdir = staticmethod(os.mkdir)

    @staticmethod
    def scandir(path: str) -> AbstractContextManager[Iterator["os.DirEntry[str]"]]:
        return os.scandir(path)

    @staticmethod
    def preadv_nowait(fd: int, views: Sequence[bytearray | memoryview], offset: int) -> int:
        """Reads only what is in the page cache.

        Raises:
            BlockingIOError: nothing of it is.
            OSError: EOPNOTSUPP where the file system has no such read (FUSE, tmpfs, overlayfs).
        """
        return os.preadv(fd, views, offset, os.RWF_NOWAIT)

    def fused(self) -> FusedFiles | None:
        """Compiled code, which makes its calls itself. None here, so that who replaces single calls sees all."""
        return None

    def size_at_once(self, path: str) -> int | None:
        """As `Glance.size`, which it is where nobody replaces single calls."""
        return None

    def publish(self, source: str, target: str) -> bool:
        """Renames without ever replacing: True if `target` is now this file, False if there was one already.

        On False `source` still exists. Raises OSError for anything else.
        """
        if _renameat2 is None:
            return _publish_by_link(source, target)
        if _renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
            return True
        code = ctypes.get_errno()
        if code == errno.EEXIST:
            return False
        if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            return _publish_by_link(source, target)
        raise OSError(code, os.strerror(code), target)

    def cannot_hang(self, fd: int) -> bool:
        """Whether the file lives in memory only."""
        return _magic(fd) in _MEMORY_MAGIC

    def can_reserve(self, fd: int) -> bool:
        """Whether `reserve` is worth calling for new files of this file system."""
        return _fallocate is not None and _magic(fd) in _PRESIZED_MAGIC

    def reserve(self, fd: int, size: int) -> None:
        """Takes room for an empty file at once; it then has that size. Where there is no such call: nothing."""
        if _fallocate is None or _fallocate(fd, 0, 0, size) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise OSError(code, os.strerror(code))


def _magic(fd: int) -> int | None:
    """Of the file system; None if it does not say."""
    buffer = (ctypes.c_long * 32)()
    return int(buffer[0]) if _libc.fstatfs(fd, ctypes.byref(buffer)) == 0 else None


def _publish_by_link(source: str, target: str) -> bool:
    """For file systems without RENAME_NOREPLACE: link fails if the name exists, so it cannot replace either."""
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # Neither flag nor hard links. A rename may then replace a file that appeared since the check; both hold the
        # same chunk, verified by every reader, so the worst case is a reader whose file was replaced: a miss.
        if os.path.lexists(target):
            return False
        os.rename(source, target)
        return True
    os.unlink(source)
    return True


class _OsFileOps(FileOps):
    def __init__(self) -> None:
        self._glance = Glance()

    def fused(self) -> FusedFiles | None:
        return fused.fused_files()

    def size_at_once(self, path: str) -> int | None:
        return self._glance.size(path)


OS_FILE_OPS: FileOps = _OsFileOps()
