"""What processes would leave behind when they are killed: found while they live, removed when they are gone.

Engines hold POSIX segments and semaphores in /dev/shm that only a clean exit removes. Which are ours is read from the
memory maps of our own descendants, so nothing of anybody else is touched. By inode: a semaphore is mapped under a name
that it had only while it was made (glibc links it to its own).
"""

import re
import time
from contextlib import suppress
from pathlib import Path

import psutil

PLACE = Path("/dev/shm")
_KILLED_WITHIN_S, _LOOK_EVERY_S = 5.0, 0.02
# address, permissions, offset, device, inode, path
_MAPPED = re.compile(rf"^\S+ \S+ \S+ \S+ (\d+)\s+{PLACE}/", re.MULTILINE)


def descendants() -> list[psutil.Process]:
    """Every process that this one started, directly or not. Those that have moved to init are not among them."""
    return psutil.Process().children(recursive=True)


def with_temporary(directory: Path) -> list[psutil.Process]:
    """Every process that was started with this TMPDIR, also those that have moved to init."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(directory):
                found.append(process)
    return found


def segments_of(processes: list[psutil.Process]) -> set[Path]:
    """What `processes` have mapped and is there by name."""
    inodes: set[int] = set()
    for process in processes:
        with suppress(OSError):
            inodes |= {int(inode) for inode in _MAPPED.findall(Path(f"/proc/{process.pid}/maps").read_text())}
    return {path for path in PLACE.iterdir() if _inode(path) in inodes} if inodes else set()


def _inode(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_ino
    return None


def end(processes: list[psutil.Process], grace_s: float = 10.0, term_s: float = 5.0) -> list[int]:
    """Wait for `processes` to end by themselves, then terminate, then kill. Returns the pids that had to be killed."""
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(alive, timeout=term_s)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_for_zombies(alive, _KILLED_WITHIN_S)
    psutil.wait_procs(alive, timeout=0)  # our own children's zombies are ours to put away
    return [process.pid for process in alive]


def _wait_for_zombies(processes: list[psutil.Process], timeout_s: float) -> None:
    """Until none runs any more. What has moved to init may stay a zombie until init looks, which holds nothing."""
    until = time.monotonic() + timeout_s
    while any(map(_runs, processes)) and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def remove_segments(segments: set[Path]) -> list[Path]:
    """Remove those that are still there and that no living process has mapped any more."""
    still = {path for path in segments if path.exists()}
    mapped = segments_of(list(psutil.process_iter())) if still else set()
    removed = []
    for path in still - mapped:
        with suppress(OSError):
            path.unlink()
            removed.append(path)
    return removed
