"""Two servers and a janitor in any order of events."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.tiers.curvine.outcomes import Get, Put
from app.tiers.curvine.retention import Score
from app.tiers.curvine.usage import name_of
from tests.tiers.curvine.conftest import FakeClock, chunk_of, payload_of, read
from tests.tiers.curvine.servers import FILE, SIZE, Server, janitor_of


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
