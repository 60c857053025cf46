"""What processes would leave behind when they are killed: found while they live, removed when they are gone.

Engines hold POSIX segments and semaphores in /dev/shm that only a clean exit removes. Which are ours is read from the
memory maps of our own descendants, so nothing of anybody else is touched.
"""

import re
from contextlib import suppress
from pathlib import Path

import psutil

_SHM = re.compile(r"(/dev/shm/\S+)")


def descendants() -> list[psutil.Process]:
    """Every process that this one started, directly or not. Those that have moved to init are not among them."""
    return psutil.Process().children(recursive=True)


def segments_of(processes: list[psutil.Process]) -> set[Path]:
    found: set[Path] = set()
    for process in processes:
        with suppress(OSError):
            found |= {Path(match) for match in _SHM.findall(Path(f"/proc/{process.pid}/maps").read_text())}
    return found


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
    psutil.wait_procs(alive, timeout=5.0)
    return [process.pid for process in alive]


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
