"""The pool stays at or below its limit whoever writes, and gives up what is worth least."""

import multiprocessing
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.tiers.curvine.chunkfile import frame
from app.tiers.curvine.credit import Credit
from app.tiers.curvine.exchange import Exchange
from app.tiers.curvine.housekeeper import Housekeeper
from app.tiers.curvine.janitor import Janitor, Limit
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.lease import Lease
from app.tiers.curvine.ledger import Ledger
from app.tiers.curvine.pool import Get, Pool, Put
from app.tiers.curvine.retainer import Retainer
from app.tiers.curvine.retention import UNKNOWN_DEPTH, Entry, Lru, Retention, Score, Worth, policy
from app.tiers.curvine.settings import PoolSettings
from app.tiers.curvine.usage import Usage, name_of
from tests.tiers.curvine.conftest import FakeClock, chunk_of, payload_of, read
from tests.tiers.curvine.mounts import wait_until

SIZE = 1000
FILE = frame(chunk_of(0, SIZE), SIZE).size


@dataclass
class Server:
    """One server's end: a pool with credit, and what it reports."""

    root: str
    name: str
    usage: Usage = field(default_factory=Usage)
    credit: Credit = field(default_factory=lambda: Credit(limited=True))
    held: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.pool = Pool(self.root, credit=self.credit, writer=self.name)
        self.pool.open()
        self.exchange = Exchange(self.root, self.name)
        self.exchange.open()
        self.exchange.evictions()

    def put(self, number: int) -> Put:
        chunk = chunk_of(number, SIZE)
        outcome = self.pool.put(chunk, memoryview(payload_of(number, SIZE)), Landing())
        if outcome is Put.STORED:
            self.usage.stored([chunk], [FILE])
        return outcome

    def report(self) -> None:
        self.exchange.send(self.usage.drain(self.held, self.credit.largest))

    def listen(self) -> list[str]:
        status = self.exchange.status()
        if status is not None:
            self.credit.grant(status.grants.get(self.exchange.writer, 0))
        return self.exchange.evictions()


def janitor_of(root: str, capacity: int, clock: FakeClock, retention: Retention | None = None, **more: Any) -> Janitor:
    limit = Limit(capacity_bytes=capacity, min_free_fraction=0)
    return Janitor(Pool(root), Exchange(root, "janitor"), retention or Lru(), limit, clock=clock, **more)


def on_disk(root: str) -> int:
    return sum(found.file_bytes for found in Pool(root).scan())


class TestJanitor:
    def test_nothing_is_stored_before_there_is_credit(self, tmp_path: Path, clock: FakeClock) -> None:
        server = Server(str(tmp_path), "a")
        assert server.put(1) is Put.FULL
        server.report()
        janitor_of(str(tmp_path), 20 * FILE, clock).tick()
        server.listen()
        assert server.put(1) is Put.STORED

    def test_three_writers_never_exceed_the_limit(self, tmp_path: Path, clock: FakeClock) -> None:
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

    def test_evictions_are_announced_to_everybody(self, tmp_path: Path, clock: FakeClock) -> None:
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

    def test_what_is_being_read_stays(self, tmp_path: Path, clock: FakeClock) -> None:
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

    def test_after_a_restart_what_is_on_disk_counts(self, tmp_path: Path, clock: FakeClock) -> None:
        root = str(tmp_path)
        unlimited = Pool(root)
        unlimited.open()
        for number in range(30):
            unlimited.put(chunk_of(number, SIZE), memoryview(payload_of(number, SIZE)), Landing())
        janitor = janitor_of(root, 20 * FILE, clock)
        tick = janitor.tick()
        assert len(tick.evicted) >= 10
        assert on_disk(root) == janitor.ledger.bytes <= 20 * FILE

    def test_the_ledger_outlives_its_janitor(self, tmp_path: Path, clock: FakeClock) -> None:
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

    def test_a_silent_writers_files_and_credit_are_found_again(self, tmp_path: Path, clock: FakeClock) -> None:
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

    def test_room_on_the_file_system_counts(self, tmp_path: Path, clock: FakeClock) -> None:
        root = str(tmp_path)
        pool = Pool(root)
        pool.open()
        for number in range(5):
            pool.put(chunk_of(number, SIZE), memoryview(payload_of(number, SIZE)), Landing())
        limit = Limit(capacity_bytes=0, min_free_fraction=0.999999)
        janitor = Janitor(pool, Exchange(root, "j"), Lru(), limit, clock=clock)
        janitor.tick()
        assert on_disk(root) == 0, "a file system that is nearly full gets its room back"

    def test_a_directory_that_cannot_be_read_is_not_an_empty_one(self, tmp_path: Path, clock: FakeClock) -> None:
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


class TestLease:
    def test_one_holder_and_a_takeover_when_it_is_stale(self, tmp_path: Path) -> None:
        path, now = str(tmp_path / "lease"), time.time()
        a, b, c = (Lease(path, name, time.time, ttl_s=10) for name in "abc")
        assert a.hold()
        assert a.hold()
        assert not b.hold()
        os.utime(path, (now - 60, now - 60))
        assert b.hold()
        assert not a.hold()
        assert not c.hold()
        b.release()
        a.release()
        assert c.hold()
        assert os.listdir(tmp_path) == ["lease"]

    def test_a_lease_renewed_in_the_last_moment_is_put_back(self, tmp_path: Path) -> None:
        path = str(tmp_path / "lease")
        fresh = Lease(path, "fresh", lambda: 0.0)
        assert fresh.hold()
        late = Lease(path, "late", lambda: 0.0)
        late._remove("somebody else")
        assert fresh.holder() == "fresh"


def test_credit_is_taken_given_back_and_raised() -> None:
    credit = Credit(limited=True)
    assert not credit.admit(10)
    credit.grant(25)
    assert credit.admit(10)
    assert credit.admit(10)
    assert not credit.admit(10)
    credit.refund(10)
    assert credit.admit(10)
    assert (credit.taken, credit.refused, credit.largest) == (20, 2, 10)
    credit.grant(None)
    assert credit.admit(1 << 40)


class TestRetention:
    @given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000)), max_size=60), st.sampled_from(["lru", "score"]))
    @settings(deadline=None)
    def test_a_beginning_never_goes_before_its_continuation(self, uses: list[tuple[int, int]], name: str) -> None:
        """Ten chunks of one prompt; each use touches the first n of them."""
        ledger = Ledger(policy(name))
        now = 0.0
        for deepest, pause in uses:
            now += pause
            for depth in range(deepest + 1):
                ledger.stored("f", str(depth), 10, depth, now)
        ledger.check_integrity()
        order = [entry.depth for entry in ledger.victims(1000, now + 1)]
        assert order == sorted(order, reverse=True)

    def test_the_score_prefers_reuse_and_dear_models(self) -> None:
        score = Score(half_life_s=100, seconds_per_byte=lambda family: 3.0 if family == "dear" else 1.0)
        once = Entry("cheap", "a", 10, 0.0, 1.0, UNKNOWN_DEPTH)
        often = score.used(score.used(once, 0.0), 0.0)
        dear = Entry("dear", "b", 10, 0.0, 1.0, UNKNOWN_DEPTH)
        assert score.value(often, 0) > score.value(once, 0)
        assert score.value(dear, 0) > score.value(once, 0)
        assert score.value(once, 1e9) < score.value(once, 0), "ages do not underflow"
        assert score.used(often, 100).weight == pytest.approx(2.5)

    def test_servers_say_what_a_byte_of_their_model_is_worth_and_the_next_janitor_still_knows(
        self, tmp_path: Path, clock: FakeClock
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

    def test_an_unknown_model_is_worth_the_average_and_nonsense_nothing(self) -> None:
        worth = Worth()
        assert worth("any") == 1.0
        worth.learn({"a": 2.0, "b": 4.0, "c": -1.0, "d": 0.0})
        assert worth("any") == 3.0
        assert worth("c") == worth("d") == 3.0

    def test_an_unknown_policy(self) -> None:
        with pytest.raises(KeyError):
            policy("mru")


def test_the_retainer_keeps_all_but_the_rest_of_a_flood() -> None:
    retainer = Retainer(flood=10, head=2, remembered=100)
    assert retainer.choose("abc") == [True] * 3
    assert retainer.choose("xyzabcdefgh") == [True, True, False, True, True, True, *[False] * 5]
    for start in range(0, 1000, 10):
        retainer.choose(range(start, start + 10))
    assert len(retainer._seen) == 100


class PoolMachine(RuleBasedStateMachine):
    """Two servers, a janitor that may be replaced, damage, against a model that knows every byte ever stored."""

    CAPACITY = 14 * FILE

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.root = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="pool-"))
        self.clock = FakeClock()
        self.servers = [Server(self.root, "a"), Server(self.root, "b")]
        self.janitor = janitor_of(self.root, self.CAPACITY, self.clock, Score())
        self.there: set[int] = set()

    @rule(who=st.integers(0, 1), number=st.integers(0, 40))
    def put(self, who: int, number: int) -> None:
        outcome = self.servers[who].put(number)
        assert (outcome is Put.EXISTS) == (number in self.there)
        if outcome is Put.STORED:
            self.there.add(number)

    @rule(who=st.integers(0, 1), number=st.integers(0, 40))
    def get(self, who: int, number: int) -> None:
        outcome, content = read(self.servers[who].pool, chunk_of(number, SIZE), SIZE)
        assert outcome is (Get.HIT if number in self.there else Get.ABSENT)
        if outcome is Get.HIT:
            assert content == payload_of(number, SIZE)
            self.servers[who].usage.loaded([chunk_of(number, SIZE)])

    @rule(who=st.integers(0, 1), number=st.integers(0, 40))
    def drop(self, who: int, number: int) -> None:
        gone = self.servers[who].pool.drop(chunk_of(number, SIZE))
        assert (gone is not None) == (number in self.there)
        self.there.discard(number)
        self.servers[who].usage.dropped(name_of(chunk_of(number, SIZE)))

    @precondition(lambda self: self.there)
    @rule(data=st.data(), position=st.integers(0, FILE - 1), bit=st.integers(0, 7))
    def damage_and_read(self, data: st.DataObject, position: int, bit: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.there)))
        chunk = chunk_of(number, SIZE)
        path = Path(self.servers[0].pool.path_of(chunk))
        content = bytearray(path.read_bytes())
        content[position] ^= 1 << bit
        path.write_bytes(content)
        assert read(self.servers[1].pool, chunk, SIZE)[0] is Get.DAMAGED
        self.there.discard(number)

    @rule()
    def tick(self) -> None:
        for server in self.servers:
            server.report()
        self.clock.now += 1
        tick = self.janitor.tick()
        evicted = {entry.digest for entry in tick.evicted}
        self.there = {number for number in self.there if chunk_of(number, SIZE).digest not in evicted}
        for server in self.servers:
            server.listen()

    @rule()
    def another_janitor(self) -> None:
        self.janitor = janitor_of(self.root, self.CAPACITY, self.clock, Score())

    @rule()
    def time_passes(self) -> None:
        self.clock.now += 1000

    @invariant()
    def never_over_and_never_wrong(self) -> None:
        files = list(self.servers[0].pool.scan())
        assert sum(found.file_bytes for found in files) <= self.CAPACITY
        assert {found.digest for found in files} == {chunk_of(number, SIZE).digest for number in self.there}
        self.janitor.check_integrity()

    def teardown(self) -> None:
        self.servers[0].pool.check_integrity()
        self.stack.close()


TestPoolAndJanitor = PoolMachine.TestCase
TestPoolAndJanitor.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)

PROCESS_CAPACITY = 200 * FILE


def _keep_storing(root: str, seed: int, stop: Any) -> None:
    """A server with its housekeeping, storing as fast as it may."""
    capacity = PROCESS_CAPACITY / 1024**3
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
    assert highest <= PROCESS_CAPACITY
    assert highest > PROCESS_CAPACITY / 2, "and the pool is used"
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(exchange._numbers()) > 0
