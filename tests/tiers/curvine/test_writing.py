"""A store by several workers: each chunk once, and what was admitted is given back unless it is stored and told."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.tiers.curvine.chunkfile import file_bytes
from app.tiers.curvine.credit import Credit
from app.tiers.curvine.fileops import OS_FILE_OPS, FileOps
from app.tiers.curvine.fused import FusedFiles
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.outcomes import Get, Put
from app.tiers.curvine.pool import Pool
from app.tiers.curvine.portion import MOST
from tests.tiers.curvine.conftest import chunk_of, payload_of, read

SIZE = 20_000
FILE = file_bytes(chunk_of(0, SIZE), SIZE)
ROOM = 50


@pytest.fixture(params=[OS_FILE_OPS, FileOps()], ids=["compiled", "file by file"])
def fs(request: pytest.FixtureRequest) -> FileOps:
    fs: FileOps = request.param
    return fs


def pool_of(directory: Path, fs: FileOps, files: int) -> tuple[Pool, Credit]:
    credit = Credit(limited=True)
    credit.grant(files * FILE)
    pool = Pool(directory / "pool", fs=fs, credit=credit)
    pool.open()
    return pool, credit


def given(*numbers: int) -> Iterator[tuple[int, ChunkId, memoryview]]:
    for number in numbers:
        yield number, chunk_of(number, SIZE), memoryview(payload_of(number, SIZE))


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_every_chunk_is_stored_once_as_far_as_there_is_credit(tmp_path: Path, fs: FileOps, helpers: int) -> None:
    pool, credit = pool_of(tmp_path, fs, ROOM)
    there = range(0, MOST, 9)
    for number in there:
        assert pool.put(chunk_of(number, SIZE), memoryview(payload_of(number, SIZE)), Landing()) is Put.STORED
    store, told = pool.store(helped=helpers > 0), list[tuple[int, Put]]()
    with ThreadPoolExecutor(helpers + 1) as workers:
        helping = [workers.submit(pool.write, store, Landing(), told.extend) for _ in range(helpers)]
        pool.write(store, Landing(), told.extend, given(*range(MOST)))
        for helper in helping:
            helper.result(30)
    outcomes = dict(told)
    assert len(told) == len(outcomes) == MOST
    assert all(outcomes[number] is Put.EXISTS for number in there)
    stored = [number for number, outcome in outcomes.items() if outcome is Put.STORED]
    full = [number for number, outcome in outcomes.items() if outcome is Put.FULL]
    # A chunk that is there already holds credit until somebody has looked, so that some may be refused beside it.
    assert len(there) + len(stored) + len(full) == MOST
    assert ROOM - 2 * len(there) <= len(stored) <= ROOM - len(there)
    assert credit.taken == (len(there) + len(stored)) * FILE
    for number in itertools.chain(there, stored):
        assert read(pool, chunk_of(number, SIZE), SIZE) == (Get.HIT, payload_of(number, SIZE))
    pool.check_integrity()


def test_who_goes_while_chunks_are_being_named_leaves_nothing(tmp_path: Path, fs: FileOps) -> None:
    pool, credit = pool_of(tmp_path, fs, ROOM)
    landing, told = Landing(), list[tuple[int, Put]]()

    def wanted() -> Iterator[tuple[int, ChunkId, memoryview]]:
        yield from given(0, 1)
        landing.revoke()
        yield from given(2)

    pool.write(pool.store(), landing, told.extend, wanted())
    assert not told
    assert credit.taken == 0
    assert list(pool.scan()) == []
    assert pool.stats().puts == {"abandoned": 3}
    pool.check_integrity()


def test_a_leader_that_fails_gives_back_what_it_was_admitted_with(tmp_path: Path, fs: FileOps) -> None:
    pool, credit = pool_of(tmp_path, fs, ROOM)

    def wanted() -> Iterator[tuple[int, ChunkId, memoryview]]:
        yield from given(0, 1)
        raise RuntimeError("the caller's objects are gone")

    with pytest.raises(RuntimeError):
        pool.write(pool.store(), Landing(), lambda told: None, wanted())
    assert credit.taken == len(list(pool.scan())) * FILE
    pool.check_integrity()


def test_what_is_stored_for_nobody_holds_no_credit(tmp_path: Path) -> None:
    landing, told = Landing(), list[tuple[int, Put]]()

    class GoneInTheEnd(FileOps):
        def publish(self, source: str, target: str) -> bool:
            published = super().publish(source, target)
            landing.revoke()
            return published

    pool, credit = pool_of(tmp_path, GoneInTheEnd(), ROOM)
    (tmp_path / "pool/chunks" / chunk_of(0, SIZE).relative).parent.mkdir(parents=True)
    pool.write(pool.store(), landing, told.extend, given(0))
    assert [found.file_bytes for found in pool.scan()] == [FILE]
    assert not told
    assert credit.taken == 0


class Counting(FileOps):
    """Compiled code and all, and counts how often somebody asks what file system this is."""

    asked = 0

    def fused(self) -> FusedFiles | None:
        return OS_FILE_OPS.fused()

    def can_reserve(self, fd: int) -> bool:
        self.asked += 1
        return super().can_reserve(fd)


def test_a_store_begins_without_asking_the_file_system(tmp_path: Path) -> None:
    fs = Counting()
    pool, _ = pool_of(tmp_path, fs, ROOM)
    assert fs.asked == 1
    pool.store(helped=True)
    assert fs.asked == 1
