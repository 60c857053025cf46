"""What the kernel knows by heart, and that nobody waits where it does not."""

import ctypes
import errno
import threading
from pathlib import Path

import pytest

from app.tiers.curvine import glance
from app.tiers.curvine.breaker import State
from app.tiers.curvine.glance import ABSENT, Glance
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.pool import Pool
from app.tiers.curvine.service import Limits, PoolService
from tests.tiers.curvine.conftest import FakeClock, chunk_of, payload_of
from tests.tiers.curvine.mounts import fuse_mount, wait_until

SIZE = 4096


@pytest.fixture
def known() -> Glance:
    known = Glance()
    if known.size("/") is None:
        pytest.skip("this kernel or sandbox has no openat2 with RESOLVE_CACHED (Linux 5.12)")
    return known


def test_a_file_that_was_written_here_has_its_size(known: Glance, tmp_path: Path) -> None:
    for size in (0, 1, 5_000_000_000):
        path = tmp_path / str(size)
        path.touch()
        with path.open("r+b") as file:
            file.truncate(size)
        assert known.size(str(path)) == size


def test_a_name_is_unknown_until_somebody_has_looked_and_then_it_is_known_to_be_absent(
    known: Glance, tmp_path: Path
) -> None:
    path = tmp_path / "never"
    assert known.size(str(path)) is None
    assert not path.exists()
    assert known.size(str(path)) == ABSENT
    path.write_bytes(b"now")
    assert known.size(str(path)) == 3
    path.unlink()
    assert known.size(str(path)) == ABSENT
    assert known.size(str(path / "below")) in (ABSENT, None)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.EPERM])
def test_where_there_is_no_such_call_nobody_tries_twice(
    known: Glance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    calls = []

    def refused(*arguments: object) -> int:
        calls.append(arguments)
        ctypes.set_errno(code)
        return -1

    monkeypatch.setattr(glance, "_syscall", refused)
    assert [known.size(str(tmp_path)) for _ in range(3)] == [None] * 3
    assert len(calls) == 1


def test_any_other_trouble_is_left_to_who_may_wait(
    known: Glance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    with monkeypatch.context() as patch:
        patch.setattr(glance, "_syscall", broken)
        assert known.size(str(tmp_path)) is None
    assert known.size(str(tmp_path)) is not None


def test_no_descriptor_is_left_open(known: Glance, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert [known.size(str(path)) for _ in range(100)] == [1] * 100
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 5  # other threads come and go


def test_a_mount_that_hangs_is_not_asked(known: Glance, tmp_path: Path) -> None:
    with fuse_mount(tmp_path, remembered_s=600) as mount:
        there, unseen = mount.path / "there", mount.path / "unseen"
        there.write_bytes(b"12345")
        (mount.backing / "unseen").write_bytes(b"1")
        assert there.stat().st_size == 5
        mount.fault("getattr", "hang")
        assert known.size(str(there)) == 5
        assert known.size(str(unseen)) is None
        mount.heal()
        assert unseen.stat().st_size == 1
        assert known.size(str(unseen)) == 1


def test_what_a_mount_lets_nobody_remember_is_asked_of_a_worker(known: Glance, tmp_path: Path) -> None:
    with fuse_mount(tmp_path) as mount:
        path = mount.path / "file"
        path.write_bytes(b"1")
        assert path.stat().st_size == 1
        assert known.size(str(path)) is None


class Looking:
    """A service, and who answered its lookups."""

    def __init__(self, root: Path, clock: FakeClock) -> None:
        self.pool = Pool(root)
        self.pool.open()
        self.service = PoolService(self.pool, Limits(rest_s=1e9), clock=clock)

    def store(self, number: int) -> None:
        self.pool.put(chunk_of(number, SIZE), memoryview(payload_of(number, SIZE)), Landing())

    def lookup(self, *numbers: int) -> tuple[list[bool], bool]:
        """What is there, and whether that was known at once."""
        answers: list[list[bool]] = []
        threads: list[threading.Thread] = []

        def done(found: list[bool]) -> None:
            threads.append(threading.current_thread())
            answers.append(found)

        self.service.lookup([chunk_of(number, SIZE) for number in numbers], [None] * len(numbers), done)
        wait_until(lambda: bool(answers))
        return answers[0], threads[0] is threading.current_thread()


def test_a_lookup_is_answered_at_once_if_all_of_it_is_known(known: Glance, tmp_path: Path, clock: FakeClock) -> None:
    looking = Looking(tmp_path, clock)
    looking.store(1)
    looking.store(2)
    assert looking.lookup(1, 2) == ([True, True], True)
    assert looking.lookup(1, 3) == ([True, False], False)
    assert looking.lookup(1, 3, 2) == ([True, False, True], True)
    looking.service.close()


def test_a_long_lookup_is_a_worker_s(tmp_path: Path, clock: FakeClock) -> None:
    looking = Looking(tmp_path, clock)
    looking.store(1)
    assert looking.lookup(*[1] * 17) == ([True] * 17, False)
    looking.service.close()


def test_while_the_breaker_is_open_what_is_known_is_a_miss_too(tmp_path: Path, clock: FakeClock) -> None:
    looking = Looking(tmp_path, clock)
    looking.store(1)
    for _ in range(3):
        looking.service.breaker.failed("read", "a test")
    assert looking.service.breaker.status().state is State.OPEN
    assert looking.lookup(1) == ([False], True)
    looking.service.close()


def test_an_answer_from_memory_does_not_speak_for_the_file_system(
    known: Glance, tmp_path: Path, clock: FakeClock
) -> None:
    looking = Looking(tmp_path, clock)
    looking.store(1)
    looking.service.breaker.failed("curvine-meta", "a test")
    assert looking.lookup(1) == ([True], True)
    assert looking.service.breaker.status().consecutive_failures == 1
    looking.service.close()
