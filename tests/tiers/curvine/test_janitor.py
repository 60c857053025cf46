"""The pool stays at or below its limit whoever writes, and gives up what is worth least."""

import os
from pathlib import Path
from typing import Any

import pytest

from app.tiers.curvine.exchange import Exchange
from app.tiers.curvine.janitor import Janitor, Limit
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.outcomes import Get, Put
from app.tiers.curvine.pool import Pool
from app.tiers.curvine.retention import Entry, Lru, Score, Worth, policy
from app.tiers.curvine.usage import Usage, name_of
from tests.tiers.curvine.conftest import FakeClock, chunk_of, payload_of, read
from tests.tiers.curvine.servers import FILE, SIZE, Server, janitor_of, on_disk


def filled_without_limit(root: str, chunks: int) -> Pool:
    """A pool with chunks in it that no writer had to have credit for."""
    pool = Pool(root)
    pool.open()
    for number in range(chunks):
        pool.put(chunk_of(number, SIZE), memoryview(payload_of(number, SIZE)), Landing())
    return pool


def test_nothing_is_stored_before_there_is_credit(tmp_path: Path, clock: FakeClock) -> None:
    server = Server(str(tmp_path), "a")
    assert server.put(1) is Put.FULL
    server.report()
    janitor_of(str(tmp_path), 20 * FILE, clock).tick()
    server.listen()
    assert server.put(1) is Put.STORED


def test_three_writers_never_exceed_the_limit(tmp_path: Path, clock: FakeClock) -> None:
    root, capacity = str(tmp_path), 30 * FILE
    servers = [Server(root, name) for name in "abc"]
    janitor = janitor_of(root, capacity, clock)
    stored = 0
    for round_number in range(40):
        for index, server in enumerate(servers):
            stored += sum(server.put(round_number * 100 + index * 10 + n) is Put.STORED for n in range(5))
            assert on_disk(root) <= capacity
        for server in servers:
            server.report()
        clock.now += 1
        janitor.tick()
        janitor.check_integrity()
        for server in servers:
            server.listen()
    assert stored > 100, "and they get something done"
    assert on_disk(root) == janitor.ledger.bytes


def test_evictions_are_announced_to_everybody(tmp_path: Path, clock: FakeClock) -> None:
    root = str(tmp_path)
    a, b = Server(root, "a"), Server(root, "b")
    janitor = janitor_of(root, 12 * FILE, clock)
    told: dict[str, list[str]] = {"a": [], "b": []}
    for number in range(60):
        a.report()
        b.report()
        clock.now += 1
        janitor.tick()
        told["a"] += a.listen()
        told["b"] += b.listen()
        a.put(number)
    assert told["a"] == told["b"]
    assert told["a"]
    assert not any(os.path.exists(a.pool.path_of_file(*name.split("/"))) for name in told["a"])


def test_what_is_being_read_stays(tmp_path: Path, clock: FakeClock) -> None:
    root = str(tmp_path)
    server = Server(root, "a")
    janitor = janitor_of(root, 12 * FILE, clock)
    first = name_of(chunk_of(0, SIZE))
    server.held = {first}
    for number in (0, *range(60)):
        server.put(number)
        server.report()
        clock.now += 1
        janitor.tick()
        server.listen()
    assert read(server.pool, chunk_of(0, SIZE), SIZE)[0] is Get.HIT


def test_after_a_restart_what_is_on_disk_counts(tmp_path: Path, clock: FakeClock) -> None:
    root = str(tmp_path)
    filled_without_limit(root, 30)
    janitor = janitor_of(root, 20 * FILE, clock)
    tick = janitor.tick()
    assert len(tick.evicted) >= 10
    assert on_disk(root) == janitor.ledger.bytes <= 20 * FILE


def test_the_ledger_outlives_its_janitor(tmp_path: Path, clock: FakeClock) -> None:
    root = str(tmp_path)
    server = Server(root, "a")
    first = janitor_of(root, 100 * FILE, clock, Score())
    server.report()
    first.tick()
    server.listen()
    server.usage.looked_up([chunk_of(n, SIZE) for n in range(3)])
    for number in range(3):
        server.put(number)
    server.usage.loaded([chunk_of(1, SIZE)])
    server.report()
    clock.now += 5
    first.tick()
    first.save()
    second = janitor_of(root, 100 * FILE, clock, Score())
    second.tick()
    assert {entry.name: entry for entry in second.ledger} == {entry.name: entry for entry in first.ledger}
    assert [entry.depth for entry in sorted(second.ledger, key=lambda e: e.depth)] == [0, 1, 2]


def test_a_silent_writers_files_and_credit_are_found_again(tmp_path: Path, clock: FakeClock) -> None:
    root = str(tmp_path)
    dead, alive = Server(root, "dead"), Server(root, "alive")
    janitor = janitor_of(root, 20 * FILE, clock, writer_ttl_s=10)
    assert dead.put(1) is Put.FULL
    for server in (dead, alive):
        server.report()
    janitor.tick()
    dead.listen()
    assert dead.put(1) is Put.STORED
    clock.now += 11
    alive.report()
    tick = janitor.tick()
    assert tick.writers == 1
    assert janitor.ledger.bytes == FILE
    dead.report()
    janitor.tick()
    dead.listen()
    assert dead.put(2) is Put.STORED, "and one that comes back gets credit again"


def test_room_on_the_file_system_counts(tmp_path: Path, clock: FakeClock) -> None:
    root = str(tmp_path)
    pool = filled_without_limit(root, 5)
    limit = Limit(capacity_bytes=0, min_free_fraction=0.999999)
    janitor = Janitor(pool, Exchange(root, "j"), Lru(), limit, clock=clock)
    janitor.tick()
    assert on_disk(root) == 0, "a file system that is nearly full gets its room back"


def test_a_directory_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path, clock: FakeClock) -> None:
    root = str(tmp_path)
    server = Server(root, "a")
    janitor = janitor_of(root, 20 * FILE, clock, rescan_s=1)
    server.report()
    janitor.tick()
    server.listen()
    server.put(1)
    server.report()
    janitor.tick()

    def fail(path: str) -> Any:
        raise OSError(5, "EIO")

    janitor._pool._fs = type("Broken", (type(janitor._pool._fs),), {"scandir": staticmethod(fail)})()
    clock.now += 5
    with pytest.raises(OSError):
        janitor.tick()
    assert janitor.ledger.bytes == FILE


def test_servers_say_what_a_byte_of_their_model_is_worth_and_the_next_janitor_still_knows(
    tmp_path: Path, clock: FakeClock
) -> None:
    root = str(tmp_path / "pool")
    slow, fast = Server(root, "slow", Usage(prefill_tokens_per_s=100)), Server(root, "fast", Usage(10_000))
    families = {}
    for server, model in ((slow, "slow"), (fast, "fast")):
        chunk = chunk_of(1, SIZE, model=model)
        families[model] = chunk.family.directory
        server.usage.stored([chunk], [FILE])
        server.report()
    for _ in range(2):
        worth = Worth()
        janitor_of(root, 100 * FILE, clock, policy("score", worth), worth=worth).tick()
        assert worth(families["slow"]) == pytest.approx(100 * worth(families["fast"]))
        entries = [Entry(family, "a", FILE, 0.0, 1.0, 0) for family in families.values()]
        first = min(entries, key=lambda entry: policy("score", worth).value(entry, 1.0))
        assert first.family == families["fast"], "what is quickly computed again goes first"
