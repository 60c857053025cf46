"""A load by several workers: each chunk once, whoever leads and whatever happens to the leader."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.tiers.curvine.fileops import OS_FILE_OPS, FileOps
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.outcomes import Get
from app.tiers.curvine.pool import Pool
from app.tiers.curvine.portion import MOST
from tests.tiers.curvine.conftest import chunk_of, payload_of

SIZE = 20_000


@pytest.fixture(params=[OS_FILE_OPS, FileOps()], ids=["compiled", "file by file"])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Pool:
    """A pool with all chunks but every seventh, and every eleventh damaged."""
    pool = Pool(tmp_path / "pool", fs=request.param)
    pool.open()
    for number in range(MOST):
        if number % 7:
            pool.put(chunk_of(number, SIZE), memoryview(payload_of(number, SIZE)), Landing())
        if number % 7 and number % 11 == 0:
            path = Path(pool.path_of(chunk_of(number, SIZE)))
            content = bytearray(path.read_bytes())
            content[10_000] ^= 1
            path.write_bytes(content)
    return pool


def expected(number: int) -> Get:
    return Get.ABSENT if number % 7 == 0 else Get.DAMAGED if number % 11 == 0 else Get.HIT


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_every_chunk_is_one_workers_and_has_its_own_verdict(filled: Pool, helpers: int) -> None:
    load = filled.load()
    places = [bytearray(SIZE) for _ in range(MOST)]
    wanted = [(chunk_of(number, SIZE), memoryview(place)) for number, place in enumerate(places)]
    with ThreadPoolExecutor(helpers + 1) as workers:
        helping = [workers.submit(filled.read, load, Landing()) for _ in range(helpers)]
        outcomes = filled.read(load, Landing(), wanted)
        outcomes += itertools.chain.from_iterable(helper.result(30) for helper in helping)
    assert sorted(outcomes, key=lambda outcome: outcome[0]) == [(number, expected(number)) for number in range(MOST)]
    for number, place in enumerate(places):
        if expected(number) is Get.HIT:
            assert place == payload_of(number, SIZE)


def test_a_leader_that_fails_leaves_nobody_waiting(filled: Pool) -> None:
    load, begun = filled.load(), threading.Event()

    def wanted() -> Iterator[tuple[ChunkId, memoryview]]:
        yield chunk_of(1, SIZE), memoryview(bytearray(SIZE))
        begun.set()
        raise RuntimeError("the caller's objects are gone")

    with ThreadPoolExecutor(1) as workers:
        helping = workers.submit(filled.read, load, Landing())
        with pytest.raises(RuntimeError):
            filled.read(load, Landing(), wanted())
        assert begun.is_set()
        assert helping.result(30) in ([], [(0, Get.HIT)])


def test_a_helper_whose_leader_never_comes_goes_when_it_is_given_up(filled: Pool) -> None:
    load, landing = filled.load(), Landing()
    with ThreadPoolExecutor(1) as workers:
        helping = workers.submit(filled.read, load, landing)
        landing.revoke()
        assert helping.result(30) == []
