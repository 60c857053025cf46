"""Files that this test makes in /dev/shm: told when they are old, one's own and mapped by nobody."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.local.leftovers import remove_segments
from app.local.orphans import orphans, told

HOLD = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 4096)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def segment() -> Iterator[Path]:
    """As old as one that a run of an hour ago has left."""
    path = Path("/dev/shm") / f"psm_tierserve-test-{os.getpid()}"
    path.write_bytes(bytes(4096))
    age(path, 3600)
    yield path
    path.unlink(missing_ok=True)


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


@pytest.fixture
def holder(segment: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(segment)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        with suppress(ProcessLookupError):
            process.kill()


def test_a_segment_that_nobody_has_mapped_is_told_and_can_be_removed(segment: Path) -> None:
    assert segment in orphans()
    assert remove_segments({segment}) == [segment]
    assert segment not in orphans()


def test_one_that_a_process_has_mapped_is_none_until_the_process_is_killed(
    segment: Path, holder: subprocess.Popen[bytes]
) -> None:
    assert segment not in orphans()
    assert remove_segments({segment}) == []
    holder.kill()
    holder.wait()
    assert segment in orphans()


def test_one_that_was_just_made_may_be_about_to_be_used(segment: Path) -> None:
    age(segment, 1)
    assert segment not in orphans()


def test_other_names_are_nobodys_business() -> None:
    path = Path("/dev/shm") / f"tierserve-test-{os.getpid()}"
    path.touch()
    age(path, 3600)
    assert path not in orphans()
    path.unlink()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_another_users_are_left_to_him(segment: Path) -> None:
    os.chown(segment, 12345, -1)
    assert segment not in orphans()


def test_it_is_said_how_many_they_are_and_what_they_take(segment: Path) -> None:
    assert told({segment}) == "1 file of killed processes (0.0 MiB)"
    segment.write_bytes(bytes(3 << 20))
    assert told({segment, Path("/dev/shm/gone")}) == "2 files of killed processes (3.0 MiB)"
