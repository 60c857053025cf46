"""What the pool does on a mount that misbehaves: answers in time, a miss rather than a wrong byte, and comes back."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from app.tiers.curvine.breaker import State
from app.tiers.curvine.directory import Dropped
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.outcomes import Put
from app.tiers.curvine.pool import Pool
from app.tiers.curvine.service import Limits, PoolService
from tests.tiers.curvine.conftest import chunk_of, payload_of
from tests.tiers.curvine.mounts import Mount, fuse_mount, small_tmpfs, wait_until

T = TypeVar("T")
SIZE = 300_000
DEADLINE = 0.4
SLACK = 0.1
LIMITS = Limits(
    lookup_s=DEADLINE, load_s=DEADLINE, store_s=DEADLINE, drop_s=DEADLINE, slow_s=DEADLINE, rest_s=0.1, max_lost=4
)


class Client:
    """The service, called as a thread that waits would, with the time that each call took."""

    def __init__(self, root: Path, limits: Limits = LIMITS) -> None:
        pool = Pool(root)
        pool.open()
        self.service = PoolService(pool, limits)

    def store(self, number: int) -> tuple[Put, float]:
        answer: list[Put] = []
        took = self._timed(
            lambda done: self.service.store([(chunk_of(number, SIZE), memoryview(payload_of(number, SIZE)))], done),
            answer,
        )
        return answer[0], took

    def load(self, number: int, into: bytearray | None = None) -> tuple[bool, float]:
        into = bytearray(SIZE) if into is None else into
        answer: list[bool] = []
        took = self._timed(lambda done: self.service.load([(chunk_of(number, SIZE), memoryview(into))], done), answer)
        if answer[0]:
            assert bytes(into) == payload_of(number, SIZE)
        return answer[0], took

    def lookup(self, number: int) -> tuple[bool, float]:
        answer: list[bool] = []
        took = self._timed(lambda done: self.service.lookup([chunk_of(number, SIZE)], [SIZE], done), answer)
        return answer[0], took

    def drop(self, chunk: ChunkId) -> tuple[Dropped | None, float]:
        started = time.monotonic()
        return self.service.drop([chunk])[0], time.monotonic() - started

    @staticmethod
    def _timed(call: Callable[[Callable[[list[T]], None]], None], answer: list[T]) -> float:
        ready = threading.Event()

        def done(outcomes: list[T]) -> None:
            answer.extend(outcomes)
            ready.set()

        started = time.monotonic()
        call(done)
        assert ready.wait(30)
        return time.monotonic() - started

    def state(self) -> State:
        return self.service.breaker.status().state

    def lost(self) -> int:
        lanes = self.service.status()["lanes"]
        assert isinstance(lanes, dict)
        return sum(lane["lost"] for lane in lanes.values())

    def close(self) -> None:
        self.service.check_integrity()
        self.service.close()


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    with fuse_mount(tmp_path_factory.mktemp("fuse")) as mount:
        yield mount


@pytest.fixture
def client(mount: Mount, request: pytest.FixtureRequest) -> Iterator[Client]:
    client = Client(mount.path / f"pool-{abs(hash(request.node.name))}")
    yield client
    mount.heal()
    wait_until(lambda: client.lost() == 0)
    wait_until(lambda: client.state() is State.CLOSED)
    client.close()


pytestmark = pytest.mark.fuse


def test_healthy(client: Client) -> None:
    assert client.store(1)[0] is Put.STORED
    assert client.store(1)[0] is Put.EXISTS
    assert client.lookup(1)[0]
    assert client.load(1)[0]
    assert client.drop(chunk_of(1, SIZE))[0] is not None
    assert not client.lookup(1)[0]


@pytest.mark.parametrize("operation", ["read", "write", "getattr", "rename", "readdir", "open", "create", "flush"])
def test_a_hang_costs_a_deadline_and_then_nothing(client: Client, mount: Mount, operation: str) -> None:
    assert client.store(1)[0] is Put.STORED
    mount.fault(operation, "hang")
    for number in range(2, 8):
        stored, took = client.store(number)
        assert took < DEADLINE + SLACK
        assert stored in (Put.STORED, Put.FAILED)
        assert client.load(1)[1] < DEADLINE + SLACK
        assert client.lookup(1)[1] < DEADLINE + SLACK
        assert client.drop(chunk_of(99, SIZE))[1] < DEADLINE + SLACK
    if operation != "readdir":  # no call of a request lists a directory
        assert client.state() is not State.CLOSED
        assert client.store(8)[0] is Put.FAILED
        refused = client.load(1)
        assert not refused[0]
        assert refused[1] < SLACK, "an open breaker answers at once"
        assert not client.lookup(1)[0]
    client.service.check_integrity()
    mount.heal()
    wait_until(lambda: client.state() is State.CLOSED)
    wait_until(lambda: client.lost() == 0)
    assert client.load(1)[0], "recovery needs no restart"
    assert client.store(9)[0] is Put.STORED
    client.service.pool.check_integrity()


def test_a_read_that_comes_back_late_finds_the_memory_gone(client: Client, mount: Mount) -> None:
    assert client.store(1)[0] is Put.STORED
    into = bytearray(SIZE)
    mount.fault("read", "hang")
    assert client.load(1, into)[0] is False
    into[:] = b"\x55" * SIZE  # the next owner
    assert client.lost() == 1
    mount.heal()
    wait_until(lambda: client.lost() == 0)
    assert into == b"\x55" * SIZE


def test_a_write_that_comes_back_late_publishes_nothing(client: Client, mount: Mount) -> None:
    mount.fault("write", "hang")
    assert client.store(1)[0] is Put.FAILED
    mount.heal()
    wait_until(lambda: client.lost() == 0)
    assert not client.lookup(1)[0]
    client.service.pool.check_integrity()


@pytest.mark.parametrize("code", ["EIO", "ESTALE", "ENOTCONN"])
def test_a_read_error_is_a_miss_and_costs_nothing_twice(client: Client, mount: Mount, code: str) -> None:
    assert client.store(1)[0] is Put.STORED
    mount.fault("read", code)
    assert not client.load(1)[0]
    mount.heal()
    assert not client.lookup(1)[0]
    assert client.store(1)[0] is Put.STORED
    assert client.load(1)[0]


def test_short_reads_are_continued_or_missed(client: Client, mount: Mount) -> None:
    for number in range(4):
        assert client.store(number)[0] is Put.STORED
    mount.fault("read", "short")
    for number in range(4):
        client.load(number)  # compares the bytes if it says that it has them
    client.service.check_integrity()


def test_short_writes_are_never_published_wrong(client: Client, mount: Mount) -> None:
    mount.fault("write", "short")
    outcome = client.store(1)[0]
    mount.heal()
    assert client.load(1)[0] is (outcome is Put.STORED)


def test_errors_in_a_row_open_the_breaker(client: Client, mount: Mount) -> None:
    mount.fault("getattr", "EIO")
    for number in range(3):
        assert not client.lookup(number)[0]
    assert client.state() is not State.CLOSED
    mount.heal()
    wait_until(lambda: client.state() is State.CLOSED)


def test_no_space_stops_storing_not_serving(client: Client, mount: Mount) -> None:
    assert client.store(1)[0] is Put.STORED
    mount.fault("write", "ENOSPC")
    for number in range(2, 8):
        assert client.store(number)[0] is Put.FULL
        assert client.load(1)[0]
    assert client.state() is State.CLOSED


def test_a_full_file_system(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "small", "2m") as root:
        client = Client(root / "pool")
        outcomes = [client.store(number)[0] for number in range(12)]
        assert outcomes[0] is Put.STORED
        assert outcomes[-1] is Put.FULL
        stored = [number for number, outcome in enumerate(outcomes) if outcome is Put.STORED]
        assert all(client.load(number)[0] for number in stored)
        assert client.state() is State.CLOSED
        client.service.pool.check_integrity()
        client.close()
