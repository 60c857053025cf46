"""The compiled writer makes the same files as the one that writes step by step, or hands a chunk back."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import xxhash

from app.tiers.curvine import chunkfile
from app.tiers.curvine.fused import FusedFiles
from app.tiers.curvine.fused_layout import AROUND_ROOM, MOST_ROWS, Answer
from app.tiers.curvine.fused_table import FusedTable, Taken
from app.tiers.curvine.fused_write import REST, STEP
from app.tiers.curvine.landing import AbandonedError, Landing
from app.tiers.curvine.outcomes import Get, Put
from app.tiers.curvine.pool import Pool
from tests.tiers.curvine.conftest import chunk_of, payload_of, read

SIZES = [1, 4096, STEP - 4096, STEP + REST - 4096, STEP + REST - 4095, 3 * STEP + 12345]


class Target:
    """A directory to write in, and tables of what is to be written."""

    def __init__(self, compiled: FusedFiles, directory: Path) -> None:
        self.compiled = compiled
        self.directory = directory

    def table(self, sizes: list[int], *, below: str = "", reserve: bool = True) -> FusedTable:
        table = self.compiled.to_write(reserve=reserve)
        self.payloads = [memoryview(payload_of(number, size)) for number, size in enumerate(sizes)]
        for number, payload in enumerate(self.payloads):
            table.add(chunk_of(number, len(payload)), payload, self.path(number, below), self.temporary(number))
        table.close()
        return table

    def path(self, number: int, below: str = "") -> str:
        return str(self.directory / below / f"{number}.arrow")

    def temporary(self, number: int) -> str:
        return str(self.directory / f"{number}.tmp")

    def names(self) -> list[str]:
        return sorted(os.listdir(self.directory))


@pytest.fixture
def target(compiled: FusedFiles, tmp_path: Path) -> Target:
    return Target(compiled, tmp_path)


def content_of(number: int, size: int) -> bytes:
    frame, payload = chunkfile.frame(chunk_of(number, size), size), payload_of(number, size)
    return frame.head() + payload + frame.tail(xxhash.xxh3_128_hexdigest(payload))


def refused(taken: Taken | None) -> tuple[Answer, int | None]:
    assert taken is not None
    assert isinstance(taken.file, OSError)
    return taken.answer, taken.file.errno


@pytest.mark.parametrize("reserve", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_the_file_has_the_bytes_that_belong_there(target: Target, size: int, reserve: bool) -> None:
    table = target.table([size], reserve=reserve)
    assert table.take(Landing(), 1) is None
    assert table.finished(1) == [(0, Answer.DONE)]
    assert target.names() == ["0.arrow"]
    assert Path(target.path(0)).read_bytes() == content_of(0, size)
    table.check_integrity()


def test_what_is_there_is_left_alone(target: Target) -> None:
    Path(target.path(0)).write_bytes(b"somebody's")
    table = target.table([4096, 4096])
    assert table.take(Landing(), 1) is None
    assert table.finished(1) == [(0, Answer.EXISTS), (1, Answer.DONE)]
    assert target.names() == ["0.arrow", "1.arrow"]
    assert Path(target.path(0)).read_bytes() == b"somebody's"


def test_a_directory_that_is_missing_hands_the_whole_temporary_back(target: Target) -> None:
    table = target.table([5000], below="nowhere")
    assert refused(table.take(Landing(), 1)) == (Answer.UNPUBLISHED, errno.ENOENT)
    assert table.finished(1) == []
    assert Path(target.temporary(0)).read_bytes() == content_of(0, 5000)


def test_a_temporary_that_cannot_be_made_leaves_nothing(target: Target) -> None:
    Path(target.temporary(0)).write_bytes(b"another's")
    table = target.table([5000])
    assert refused(table.take(Landing(), 1)) == (Answer.FAILED, errno.EEXIST)
    assert target.names() == ["0.tmp"]
    assert Path(target.temporary(0)).read_bytes() == b"another's"


def test_nothing_is_written_for_who_has_gone(target: Target) -> None:
    table, landing = target.table([4096] * 3), Landing()
    landing.gate()
    landing.revoke()
    with pytest.raises(AbandonedError):
        table.take(landing, 1)
    assert list(table.rest()) == [0, 1, 2]
    assert list(table.rest()) == []
    assert table.take(Landing(), 2) is None
    assert target.names() == []
    table.check_integrity()


def test_workers_share_a_table_and_each_row_is_one_workers(target: Target) -> None:
    size = 100_000
    table = target.table([size] * MOST_ROWS)

    def work(worker: int) -> list[int]:
        assert table.take(Landing(), worker) is None
        return [row for row, _ in table.finished(worker)]

    with ThreadPoolExecutor(4) as pool:
        answers = [answer for worker in pool.map(work, range(1, 5)) for answer in worker]
    assert sorted(answers) == list(range(MOST_ROWS))
    for number in range(MOST_ROWS):
        assert Path(target.path(number)).read_bytes() == content_of(number, size)


def test_an_identity_that_is_too_long_for_the_loop_is_stored_all_the_same(compiled: FusedFiles, pool: Pool) -> None:
    chunk = chunk_of(1, 4096).family.chunk(b"long", salt="s" * 2 * AROUND_ROOM)
    assert pool.put(chunk, memoryview(payload_of(1, 4096)), Landing()) is Put.STORED
    assert read(pool, chunk, 4096) == (Get.HIT, payload_of(1, 4096))
