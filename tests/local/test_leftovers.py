"""A real child with a real segment in /dev/shm: found while it lives, removed when it is gone, and nobody else's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.local.leftovers import descendants, end, remove_segments, segments_of, with_temporary

HOLD = """
import mmap, multiprocessing, signal, sys
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    held = mmap.mmap(file.fileno(), 4096)
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
sys.stdin.read() if "stubborn" not in sys.argv else signal.pause()
"""


class Child:
    """Maps a segment and holds it until its input ends."""

    def __init__(self, name: str, *how: str) -> None:
        self.segment = Path("/dev/shm") / f"tierserve-test-{os.getpid()}-{name}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(self.segment), *how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": f"/tmp/tierserve-test-{os.getpid()}-{name}"},
            stderr=subprocess.DEVNULL,  # Python says of a killed process that it leaked a semaphore: that is the point
        )
        assert self._process.stdout is not None
        self.semaphore = Path("/dev/shm") / f"sem.{self._process.stdout.readline().decode().strip().lstrip('/')}"
        self.process = psutil.Process(self._process.pid)

    def let_go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self.segment.unlink(missing_ok=True)
        self.semaphore.unlink(missing_ok=True)


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child("one")
    yield made
    made.close()


@pytest.fixture
def stubborn() -> Iterator[Child]:
    made = Child("two", "stubborn")
    yield made
    made.close()


def test_children_and_their_segments_are_found(child: Child) -> None:
    assert child.process in descendants()
    assert child.segment in segments_of(descendants())


def test_what_was_started_with_a_temporary_directory_is_found_by_it(child: Child) -> None:
    assert child.process in with_temporary(Path(f"/tmp/tierserve-test-{os.getpid()}-one"))
    assert with_temporary(Path(f"/tmp/tierserve-test-{os.getpid()}")) == []


def test_a_semaphore_is_found_although_it_is_mapped_under_another_name(child: Child) -> None:
    assert child.semaphore.exists()
    assert segments_of([child.process]) == {child.segment, child.semaphore}


def test_a_segment_that_is_still_mapped_stays(child: Child) -> None:
    assert remove_segments({child.segment, child.semaphore}) == []
    assert child.segment.exists()


def test_a_segment_of_a_killed_process_goes(child: Child) -> None:
    segments = segments_of([child.process])
    child.process.kill()
    child.process.wait(10)
    # Python's own tracker removes the semaphore too: whoever comes first.
    assert set(remove_segments(segments)) - {child.semaphore} == {child.segment}
    assert not child.segment.exists()
    assert not child.semaphore.exists()
    assert remove_segments(segments) == [], "what is gone already is no error"


def test_a_process_that_ends_by_itself_is_not_killed(child: Child) -> None:
    child.let_go()
    assert end([child.process]) == []
    assert not child.process.is_running()


def test_a_process_that_does_not_end_is_terminated(child: Child) -> None:
    assert end([child.process], grace_s=0.0) == []
    assert not child.process.is_running()


def test_a_process_that_ignores_that_is_killed(stubborn: Child) -> None:
    assert end([stubborn.process], grace_s=0.0, term_s=0.1) == [stubborn.process.pid]
    assert not stubborn.process.is_running()


def test_segments_of_a_process_that_is_gone_are_none(child: Child) -> None:
    child.process.kill()
    child.process.wait(10)
    assert segments_of([child.process]) == set()
