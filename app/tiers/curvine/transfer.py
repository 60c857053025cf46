"""Moves one payload between the caller's memory and a file, hashing each step while it is in the processor's cache.

Why steps: hashing 12 MiB after reading it costs a second trip to memory (0.6 of a plain read on two cores); in steps of
1 MiB it is still in cache and the cost is a tenth. Why two ways to read, see `_Reader.fill`.
"""

import ctypes
import errno
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import xxhash

from app.tiers.curvine.chunkfile import Frame
from app.tiers.curvine.fileops import FileOps
from app.tiers.curvine.fused_table import Opened
from app.tiers.curvine.fused_write import REST, STEP
from app.tiers.curvine.landing import AbandonedError, Landing

READ_STEP = 1024 * 1024
# A whole step with what surrounds a payload: on a FUSE mount each read has a price of its own (256 KiB at a time gave
# three quarters of the speed).
_BOUNCE = READ_STEP + REST + 32 * 1024


def _pieces(frame: Frame, payload: memoryview, length: int) -> Iterator[tuple[int, memoryview, bool]]:
    """Offset, bytes and whether they are the last, step by step. All steps but the first, which is shorter by the head,
    start at round offsets of the file, for the sake of the page cache's large folios."""
    size, at, step = len(payload), 0, length - frame.head_bytes
    while True:
        end = at + step
        if end + REST >= size:
            yield at, payload[at:], True
            return
        yield at, payload[at:end], False
        at, step = end, length


class ShortFileError(Exception):
    """The file ended early."""


@dataclass(frozen=True, slots=True)
class Mode:
    """How a file system lets itself be read. `nowait`: it can answer from the page cache without ever blocking.
    `hangs`: a plain read may block for ever."""

    nowait: bool
    hangs: bool


class Modes:
    """What has been learnt of each file system, by device number. Any thread; grows by one entry a mount."""

    def __init__(self, fs: FileOps) -> None:
        self._fs = fs
        self._known: dict[int, Mode] = {}

    def of(self, device: int) -> Mode:
        return self._known.get(device, Mode(nowait=True, hangs=True))

    def no_nowait(self, device: int, fd: int) -> Mode:
        """Records that the device refused a non-blocking read."""
        mode = Mode(nowait=False, hangs=not self._fs.cannot_hang(fd))
        self._known[device] = mode
        return mode


_local = threading.local()


def _bounce() -> bytearray:
    buffer: bytearray | None = getattr(_local, "bounce", None)
    if buffer is None:
        buffer = _local.bounce = bytearray(_BOUNCE)
    return buffer


def write_chunk(fs: FileOps, fd: int, frame: Frame, payload: memoryview, landing: Landing) -> None:
    """Writes head, payload and tail in order, straight from the caller's memory. Runs on a worker; may block for ever.

    A caller that goes away while a write hangs may reuse its memory, so what is then in the file is unknown: the
    landing is checked after the last byte, and the file must not be published unless this returns.

    Raises:
        AbandonedError: the caller has gone. OSError: the file system's answer, ENOSPC among them.
    """
    hasher = xxhash.xxh3_128()
    views: list[bytes | memoryview] = [frame.head()]
    for _, piece, last in _pieces(frame, payload, STEP):
        landing.check()
        hasher.update(piece)
        views.append(piece)
        if last:
            views.append(frame.tail(hasher.hexdigest()))
        _write_all(fs, fd, views)
        views = []
    landing.check()


def _write_all(fs: FileOps, fd: int, views: Sequence[bytes | memoryview]) -> None:
    want = sum(len(view) for view in views)
    done = fs.writev(fd, views)
    while done < want:
        if done < 0:  # pragma: no cover - writev raises instead
            raise OSError(errno.EIO, "negative write")
        written = fs.writev(fd, _after(views, done))
        if written == 0:
            raise OSError(errno.EIO, "nothing written")
        done += written


def read_chunk(fs: FileOps, modes: Modes, file: Opened, frame: Frame, payload: memoryview, landing: Landing) -> bool:
    """Reads one file whose size is already known to be `frame.size` into `payload`. True if every byte around the
    payload is the expected one and the checksum matches; on False `payload` holds rubbish. Runs on a worker; may block
    for ever.

    Raises:
        ShortFileError: the file ends early. AbandonedError: the caller has gone. OSError: the file system's answer.
    """
    reader = _Reader(fs, modes, file.device, file.fd, landing)
    head, tail = bytearray(frame.head_bytes), bytearray(frame.tail_bytes)
    hasher = xxhash.xxh3_128()
    for at, piece, last in _pieces(frame, payload, READ_STEP):
        views: list[bytearray | memoryview] = [piece]
        if at == 0:
            views.insert(0, head)
        if last:
            views.append(tail)
        reader.fill(views, frame.head_bytes + at if at else 0)
        hasher.update(piece)
    return head == frame.head() and tail == frame.tail(hasher.hexdigest())


class _Reader:
    """Fills memory from one open file, on one worker."""

    __slots__ = ("_device", "_fd", "_fs", "_landing", "_mode", "_modes")

    def __init__(self, fs: FileOps, modes: Modes, device: int, fd: int, landing: Landing) -> None:
        self._fs = fs
        self._modes = modes
        self._device = device
        self._fd = fd
        self._landing = landing
        self._mode = modes.of(device)

    def fill(self, views: Sequence[bytearray | memoryview], offset: int) -> None:
        """Fills all of `views` from `offset`.

        What the page cache holds goes straight into the caller's memory, with a read that cannot block, under the
        landing's lock. What would block goes through a bounce buffer,
        because a read that hangs must not find the caller's memory when it wakes up: FUSE, NFS and a cold disk pay
        this copy.

        Raises:
            ShortFileError, AbandonedError, OSError: as `read_chunk`.
        """
        want = sum(len(view) for view in views)
        done = self._direct(views, offset)
        while done < want:
            done += self._bounced(_after(views, done), offset + done)

    def _direct(self, views: Sequence[bytearray | memoryview], offset: int) -> int:
        mode = self._mode
        if not mode.nowait and mode.hangs:
            return 0
        with self._landing.lock:
            if self._landing.revoked:
                raise AbandonedError
            try:
                if mode.nowait:
                    return self._fs.preadv_nowait(self._fd, views, offset)
                return self._fs.preadv(self._fd, views, offset)
            except BlockingIOError:
                return 0
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
        self._mode = self._modes.no_nowait(self._device, self._fd)
        return self._direct(views, offset)

    def _bounced(self, views: Sequence[memoryview], offset: int) -> int:
        self._landing.check()
        bounce = memoryview(_bounce())
        want = min(len(bounce), sum(len(view) for view in views))
        got = self._fs.preadv(self._fd, [bounce[:want]], offset)
        if got == 0:
            raise ShortFileError
        with self._landing.lock:
            if self._landing.revoked:
                raise AbandonedError
            done = 0
            for view in views:
                take = min(len(view), got - done)
                if take == 0:
                    break
                _copy(view, bounce, done, take)
                done += take
        return got


def _copy(target: memoryview, source: memoryview, start: int, length: int) -> None:
    # memmove through ctypes lets go of the interpreter lock, a slice assignment does not.
    ctypes.memmove(
        ctypes.addressof(ctypes.c_char.from_buffer(target)),
        ctypes.addressof(ctypes.c_char.from_buffer(source)) + start,
        length,
    )


def _after(views: Sequence[bytes | bytearray | memoryview], skip: int) -> list[memoryview]:
    """What is left of `views` behind their first `skip` bytes."""
    rest = []
    for view in views:
        if skip >= len(view):
            skip -= len(view)
            continue
        rest.append(memoryview(view)[skip:])
        skip = 0
    return rest
