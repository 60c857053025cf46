"""Several processes at one pool, some of them killed."""

import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing.context import SpawnContext
from pathlib import Path

from app.tiers.curvine.chunkfile import inspect
from app.tiers.curvine.fused import fused_files
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.outcomes import Get, Put
from app.tiers.curvine.pool import Pool
from tests.tiers.curvine.conftest import chunk_of, payload_of, read

SIZE = 6_000
KEYS = 4_000
PUTS = 10_000
WRITERS = 4
BIG = 400_000
KILLS = 200


def _write(root: str, seed: int, puts: int) -> None:
    pool = Pool(root)
    pool.open()
    numbers = random.Random(seed)
    for _ in range(puts):
        number = numbers.randrange(KEYS)
        outcome = pool.put(chunk_of(number, SIZE), memoryview(payload_of(number, SIZE)), Landing())
        assert outcome in (Put.STORED, Put.EXISTS), outcome
        seen, content = read(pool, chunk_of(number, SIZE), SIZE)
        assert seen is Get.HIT, seen
        assert content == payload_of(number, SIZE)


def test_processes_storing_the_same_and_different_keys(tmp_path: Path) -> None:
    context: SpawnContext = multiprocessing.get_context("spawn")
    root = str(tmp_path / "pool")
    writers = [context.Process(target=_write, args=(root, seed, PUTS // WRITERS)) for seed in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(300)
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    pool = Pool(root)
    files = list(pool.scan())
    assert len(files) == len({found.digest for found in files}) > KEYS * 0.8
    for number in range(KEYS):
        seen, content = read(pool, chunk_of(number, SIZE), SIZE)
        assert seen is Get.ABSENT or content == payload_of(number, SIZE)
    assert os.listdir(pool.tmp) == []
    assert pool.stats().set_aside == 0
    pool.check_integrity()


_NURSERY = "import sys; from tests.tiers.curvine.test_processes import nursery; nursery(sys.argv[1])"


def nursery(root: str) -> None:
    """For every line on stdin: a fork that stores and drops chunks until it is killed. A fork costs a millisecond, a
    fresh interpreter half a second."""
    fused_files()  # compiled once, as in a server that has started
    payloads = [payload_of(number, BIG) for number in range(8)]
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            victim = Pool(root)
            for step in itertools.count((int(line) + 1) * 1_000_000):
                victim.put(chunk_of(step, BIG), memoryview(payloads[step % 8]), Landing())
                victim.drop(chunk_of(step - 1, BIG))
        print(child, flush=True)  # noqa: T201
        os.waitpid(child, 0)
        print("dead", flush=True)  # noqa: T201


def test_killed_in_the_middle_of_a_put(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "pool")
    pool.open()
    known = {payload_of(number, BIG) for number in range(8)}
    chance = random.Random(3)
    in_mid_put = served = 0
    with subprocess.Popen(
        [sys.executable, "-c", _NURSERY, pool.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(KILLS):
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            victim = int(process.stdout.readline())
            try:
                _look_until(pool.tmp, chance.randrange(1, 6), chance.randrange(30))
            finally:
                os.kill(victim, signal.SIGKILL)
            assert process.stdout.readline() == "dead\n"
            in_mid_put += bool(os.listdir(pool.tmp))
            for found in list(pool.scan()):
                chunk = inspect(pool.path_of_file(found.family, found.digest)).chunk
                outcome, content = read(pool, chunk, BIG)
                assert outcome is Get.HIT
                assert content in known
                served += 1
                pool.drop(chunk)
            for orphan in os.listdir(pool.tmp):
                os.utime(f"{pool.tmp}/{orphan}", (1, 1))
            pool.sweep(60)
            assert os.listdir(pool.tmp) == []
        process.stdin.close()
    assert in_mid_put > KILLS / 10, "kills must hit puts"
    assert served > KILLS / 2
    assert pool.stats().set_aside == 0


def _look_until(directory: str, puts: int, looks: int) -> None:
    """Returns at a random moment of somebody's put: when so many different temporaries have been seen, the last of
    them so often, looking without pause. Fewer than `looks` if the put is over before."""
    deadline = time.monotonic() + 20
    seen: set[str] = set()
    while len(seen) < puts:
        now = os.listdir(directory)
        seen.update(now)
        assert time.monotonic() < deadline
    for _ in range(looks):
        if os.listdir(directory) != now:
            return
