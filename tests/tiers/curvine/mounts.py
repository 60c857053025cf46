"""Mounts for tests: started, waited for, and gone afterwards whatever happened."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Returns as soon as the condition holds; fails the test if it does not in time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        pause.wait(0.005)


class Mount:
    """A mounted fault file system. `fault` switches a misbehaviour on, `heal` all of them off."""

    def __init__(self, directory: Path) -> None:
        self.backing, self.path, self.control = (directory / name for name in ("backing", "mount", "control"))
        for path in (self.backing, self.path, self.control):
            path.mkdir(parents=True)

    def fault(self, operation: str, word: str) -> None:
        new = self.control.parent / "new-fault"
        new.write_text(word)
        os.replace(new, self.control / operation)

    def heal(self) -> None:
        for path in self.control.iterdir():
            path.unlink()


@contextmanager
def fuse_mount(directory: Path, remembered_s: float = 0.0) -> Iterator[Mount]:
    """`remembered_s`: for how long the kernel may answer for names and sizes itself. Skips the test where FUSE is
    missing."""
    if not os.path.exists("/dev/fuse") or shutil.which("fusermount3") is None:
        pytest.skip("needs /dev/fuse and fusermount3 (Debian: fuse3)")
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as error:
        pytest.skip(f"needs mfusepy and libfuse3: {error}")
    mount = Mount(directory)
    arguments = [str(mount.backing), str(mount.path), str(mount.control), str(remembered_s)]
    process = subprocess.Popen([sys.executable, "-m", "tests.tiers.curvine.faultfs", *arguments])
    try:
        wait_until(lambda: process.poll() is not None or os.path.ismount(mount.path))
        if process.poll() is not None:
            pytest.skip("this machine does not let us mount FUSE")
        yield mount
    finally:
        mount.heal()
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(["fusermount3", "-u", "-z", str(mount.path)], check=False, timeout=10)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait(10)


@contextmanager
def small_tmpfs(directory: Path, size: str) -> Iterator[Path]:
    """A file system that is soon full. Skips the test where it cannot be mounted."""
    directory.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)], capture_output=True)
    if done.returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
