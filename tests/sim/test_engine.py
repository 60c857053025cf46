"""One replica: times add up, loads overlap with others' computing, blocks come back, death returns requests."""

import heapq
from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing.policy import Request
from app.routing.prompt import Prompt
from app.sim.engine import Engine
from app.sim.flight import Flight
from app.sim.hardware import speed_of
from app.sim.workload import Job

SPEED = replace(speed_of("L40S", "llama-3.1-8b"), l0_tokens=6400)


class World:
    """A Host that loads what it is told to and notes what happens."""

    def __init__(self, load_s: float = 0.0, l2: int = 0) -> None:
        self.heap: list[tuple[float, int, Callable[[float], None]]] = []
        self.made = 0
        self.now = 0.0
        self.first: dict[str, float] = {}
        self.done: dict[str, float] = {}
        self.gone: list[int] = []
        self._load_s, self._l2 = load_s, l2
        self.engine = Engine("r0.1", 0, SPEED, 64, self)

    def find(self, engine: Engine, flight: Flight, now: float) -> float:
        if not self._load_s or flight.id != "slow":
            return now
        flight.l2 = self._l2
        return now + self._load_s

    def evicted(self, engine: Engine, names: list[int]) -> None:
        self.gone += names

    def prefilled(self, engine: Engine, flight: Flight, new: list[int], seconds: float, now: float) -> None:
        self.first[flight.id] = now

    def finished(self, engine: Engine, flight: Flight, now: float) -> None:
        self.done[flight.id] = now

    def later(self, at: float, action: Callable[[float], None]) -> None:
        self.made += 1
        heapq.heappush(self.heap, (max(at, self.now), self.made, action))

    def send(self, name: str, at: float, tokens: int, output: int, first: int = 0) -> None:
        names = tuple(range(first, first + -(-tokens // 64)))
        flight = Flight(Job(at, tokens, output, names), name, Request(name, Prompt("none", "", "", (), ())), array("I"))
        self.later(at, lambda now: self.engine.submit(flight, now))

    def run(self) -> None:
        while self.heap:
            self.now, _, action = heapq.heappop(self.heap)
            action(self.now)
            self.engine.check_integrity()


def test_alone_a_request_takes_its_prefill_and_then_a_step_a_token() -> None:
    world = World()
    world.send("a", 1.0, 1000, 11)
    world.run()
    assert world.first["a"] == pytest.approx(1.0 + SPEED.prefill_s(0, 1000))
    step = SPEED.step_s + (1000 + 5.5) * SPEED.context_s
    assert world.done["a"] == pytest.approx(world.first["a"] + 10 * step)


def test_what_l0_has_is_not_computed_again_but_the_last_token_always_is() -> None:
    world = World()
    world.send("a", 0.0, 640, 1)
    world.send("b", 10.0, 640, 1)
    world.run()
    assert world.first["b"] - 10.0 == pytest.approx(SPEED.prefill_s(576, 64))


def test_a_decode_slows_a_prefill_down_and_the_other_way_round() -> None:
    alone, beside = World(), World()
    beside.send("long", 0.0, 3000, 2000, first=1000)
    for world in (alone, beside):
        world.send("a", 1.0, 1000, 1)
        world.run()
    slower = (SPEED.chunk_s + 4000 * SPEED.context_s) / SPEED.chunk_s
    assert (beside.first["a"] - 1.0) == pytest.approx((alone.first["a"] - 1.0) * slower, rel=1e-6)


def test_while_one_loads_another_computes_and_then_it_goes_before_those_that_wait() -> None:
    world = World(load_s=0.01, l2=960)
    for number, name in enumerate(("slow", "b", "c")):
        world.send(name, 0.0, 1000, 1, first=100 * number)
    world.run()
    assert world.first["b"] == pytest.approx(SPEED.prefill_s(0, 1000))
    assert world.first["slow"] - world.first["b"] == pytest.approx(SPEED.prefill_s(960, 40))
    assert world.first["c"] > world.first["slow"]


def test_without_room_requests_wait_and_what_is_not_used_is_evicted() -> None:
    world = World()
    for number in range(4):
        world.send(f"q{number}", 0.0, 3000, 100, first=100 * number)
    world.run()
    assert len(world.done) == 4
    assert world.first["q2"] >= min(world.done["q0"], world.done["q1"])
    assert world.gone


def test_a_killed_engine_returns_what_it_had_and_does_nothing_more() -> None:
    world = World()
    for number in range(3):
        world.send(f"q{number}", 0.1 * number, 3000, 100, first=100 * number)
    had: list[Flight] = []
    world.later(0.5, lambda now: had.extend(world.engine.kill()))
    world.heap.sort()
    while world.heap:
        world.now, _, action = heapq.heappop(world.heap)
        action(world.now)
    assert [flight.id for flight in had] == ["q0", "q1", "q2"]
    assert not world.done


def test_far_from_zero_time_does_not_stand_still() -> None:
    world = World()
    for number in range(50):
        world.send(f"q{number}", 1e7 + 0.123456789 * number, 200 + number, 30, first=100 * number)
    world.run()
    assert len(world.done) == 50


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 3000), st.integers(1, 300), st.integers(0, 3)), max_size=25),
    st.sampled_from([0.0, 0.05]),
)
def test_every_request_is_answered_in_time_and_every_block_comes_back(
    jobs: list[tuple[float, int, int, int]], load_s: float
) -> None:
    world = World(load_s, 64)
    for number, (at, tokens, output, group) in enumerate(jobs):
        world.send(f"q{number}", at, tokens, output, first=1000 * group)
    world.run()
    assert len(world.done) == len(jobs)
    assert world.engine.pool.used_blocks == 0
    assert world.engine.ongoing == 0
    for number, (at, *_) in enumerate(jobs):
        assert at < world.first[f"q{number}"] <= world.done[f"q{number}"]
