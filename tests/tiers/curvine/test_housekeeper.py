"""Processes at one pool, each with its housekeeper."""

import multiprocessing
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

import pytest

from app.tiers.curvine.credit import Credit
from app.tiers.curvine.exchange import Exchange
from app.tiers.curvine.fused import fused_files
from app.tiers.curvine.housekeeper import Housekeeper
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.outcomes import Put
from app.tiers.curvine.pool import Pool
from app.tiers.curvine.settings import PoolSettings
from app.tiers.curvine.usage import Usage
from tests.tiers.curvine.conftest import chunk_of
from tests.tiers.curvine.mounts import wait_until
from tests.tiers.curvine.servers import FILE, SIZE, on_disk

CAPACITY = 200 * FILE


def _keep_storing(root: str, seed: int, stop: Any) -> None:
    """A server with its housekeeping, storing as fast as it may."""
    fused_files()  # compiled before it serves, as in a server
    capacity = CAPACITY / 1024**3
    options = PoolSettings(path=root, capacity_gb=capacity, min_free_fraction=0.0, tick_s=0.05)
    usage, credit = Usage(), Credit(limited=True)
    pool = Pool(root, credit=credit)
    pool.open()
    housekeeper = Housekeeper(pool, options, usage, credit)
    housekeeper.start()
    number = seed * 1_000_000
    while not stop.is_set():
        number += 1
        chunk = chunk_of(number, SIZE)
        if pool.put(chunk, memoryview(bytes(SIZE)), Landing()) is Put.STORED:
            usage.stored([chunk], [FILE])
        else:
            stop.wait(0.002)
    housekeeper.close()


@pytest.fixture
def spawn() -> SpawnContext:
    return multiprocessing.get_context("spawn")


def test_three_processes_stay_below_the_limit_and_one_of_them_is_the_janitor(
    tmp_path: Path, spawn: SpawnContext
) -> None:
    root = str(tmp_path / "pool")
    pool = Pool(root)
    pool.open()
    stop = spawn.Event()
    writers = [spawn.Process(target=_keep_storing, args=(root, seed, stop)) for seed in range(3)]
    for writer in writers:
        writer.start()
    try:
        exchange = Exchange(root, "watcher")
        highest = 0

        def busy() -> bool:
            nonlocal highest
            highest = max(highest, on_disk(root))
            status = exchange.status()
            return status is not None and status.tick > 60 and len(status.grants) == 3

        wait_until(busy, 60)
    finally:
        stop.set()
        for writer in writers:
            writer.join(20)
            writer.kill()
    assert highest <= CAPACITY
    assert highest > CAPACITY / 2, "and the pool is used"
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(exchange._numbers()) > 0
