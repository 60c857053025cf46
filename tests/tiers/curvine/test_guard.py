"""Deadlines hold, lost workers are replaced up to a bound, and the breaker opens and closes. No file system here."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.tiers.curvine.batch import Missed
from app.tiers.curvine.breaker import Breaker, State
from app.tiers.curvine.guard import Guard
from app.tiers.curvine.landing import AbandonedError, Landing
from app.tiers.curvine.prober import Prober
from tests.tiers.curvine.conftest import FakeClock
from tests.tiers.curvine.mounts import wait_until

T = TypeVar("T")
DEADLINE = 0.2


@dataclass
class Harness:
    breaker: Breaker = field(default_factory=lambda: Breaker(threshold=2, rest_s=0.05))
    hang: threading.Event = field(default_factory=threading.Event)
    guard: Guard = field(init=False)

    def __post_init__(self) -> None:
        self.guard = Guard("test", self.breaker, workers=2, max_lost=2, slow_s=10)

    def stuck(self, _: Landing) -> str:
        self.hang.wait(30)
        return "back"


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.guard.check_integrity()
    harness.hang.set()
    wait_until(lambda: harness.guard.status().lost == 0)
    harness.guard.close()
    harness.guard.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-")]


def ask(guard: Guard, size: int, work: Callable[[int, Landing], T], deadline: float = 5.0) -> list[T | Missed]:
    answers: list[T | Missed] = []
    ready = threading.Event()

    def done(outcomes: list[T | Missed]) -> None:
        answers.extend(outcomes)
        ready.set()

    guard.submit(size, work, deadline, done)
    assert ready.wait(20)
    return answers


def test_results_come_in_order(harness: Harness) -> None:
    assert ask(harness.guard, 50, lambda index, _: index * 2) == [index * 2 for index in range(50)]
    assert ask(harness.guard, 0, lambda index, _: index) == []


def test_a_piece_that_raises_fails_alone(harness: Harness) -> None:
    def work(index: int, _: Landing) -> int:
        if index == 3:
            raise ValueError
        return index

    assert ask(harness.guard, 5, work) == [0, 1, 2, Missed.FAILED, 4]


def test_a_hang_is_answered_at_the_deadline(harness: Harness) -> None:
    def work(index: int, landing: Landing) -> str:
        return harness.stuck(landing) if index == 1 else "done"

    started = time.monotonic()
    outcomes = ask(harness.guard, 4, work, DEADLINE)
    assert time.monotonic() - started < DEADLINE + 0.1
    assert outcomes == ["done", Missed.LATE, "done", "done"]
    assert harness.guard.status().lost == 1
    assert harness.guard.status().workers == 2, "replaced"


def test_lost_threads_are_bounded_and_then_calls_are_refused(harness: Harness) -> None:
    for _ in range(4):
        assert harness.guard.call(harness.stuck, 0.05, probing=True) is Missed.LATE
    status = harness.guard.status()
    assert (status.workers, status.lost) == (0, 4)
    started = time.monotonic()
    assert harness.guard.call(harness.stuck, 5, probing=True) is Missed.REFUSED
    assert time.monotonic() - started < 0.1
    harness.hang.set()
    wait_until(lambda: harness.guard.status().workers == 2)
    assert harness.guard.call(lambda _: "fine", 5, probing=True) == "fine"


def test_late_work_is_revoked(harness: Harness) -> None:
    landings: list[Landing] = []
    checked: list[bool] = []

    def work(landing: Landing) -> None:
        landings.append(landing)
        harness.hang.wait(30)
        try:
            landing.check()
        except AbandonedError:
            checked.append(True)

    assert harness.guard.call(work, 0.05) is Missed.LATE
    assert landings[0].revoked
    harness.hang.set()
    wait_until(lambda: bool(checked))


def test_failures_in_a_row_open_the_breaker_and_a_probe_closes_it(harness: Harness) -> None:
    healthy = threading.Event()

    def probe() -> None:
        if not healthy.is_set():
            raise OSError

    prober = Prober(harness.breaker, harness.guard, probe, DEADLINE)
    for _ in range(2):
        harness.guard.call(harness.stuck, 0.05)
    assert not harness.breaker.allows()
    assert harness.guard.call(lambda _: 1, 5) is Missed.REFUSED
    wait_until(lambda: harness.breaker.status().probes > 1)
    healthy.set()
    wait_until(harness.breaker.allows)
    assert harness.guard.call(lambda _: 1, 5) == 1
    prober.close()


def test_trouble_and_slowness_count(harness: Harness) -> None:
    guard = Guard("slow", harness.breaker, workers=1, slow_s=0.0)
    ready = threading.Event()
    for _ in range(2):
        ready.clear()
        guard.submit(1, lambda *_: 1, 5, lambda _: ready.set(), trouble=lambda _: False)
        assert ready.wait(5)
    assert harness.breaker.status().opened == 1
    guard.close()


def test_closing_answers_what_waits(harness: Harness) -> None:
    answers: list[object] = []
    for _ in range(4):
        harness.guard.submit(1, lambda _, landing: harness.stuck(landing), 60, answers.extend)
    harness.guard.close(0.1)
    wait_until(lambda: len(answers) == 4)
    assert set(answers) == {Missed.LATE}
    assert harness.guard.call(lambda _: 1, 1) is Missed.REFUSED


class BreakerMachine(RuleBasedStateMachine):
    """Against a model: per kind, failures in a row; open at two; probes not before the rest is over."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.breaker = Breaker(threshold=2, rest_s=10, clock=self.clock)
        self.rows = {"read": 0, "write": 0}
        self.state = State.CLOSED
        self.due = 0.0

    @rule(kind=st.sampled_from(["read", "write"]))
    def failed(self, kind: str) -> None:
        self.breaker.failed(kind, "x")
        self.rows[kind] += 1
        if self.state is State.CLOSED and self.rows[kind] >= 2:
            self.state, self.due = State.OPEN, self.clock.now + 10

    @rule(kind=st.sampled_from(["read", "write"]))
    def succeeded(self, kind: str) -> None:
        self.breaker.succeeded(kind)
        if self.state is State.CLOSED:
            self.rows[kind] = 0

    @rule(seconds=st.integers(1, 11))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule(ok=st.booleans())
    def probe(self, ok: bool) -> None:
        may = self.state is State.OPEN and self.clock.now >= self.due
        assert self.breaker.try_probe() is may
        if may:
            assert not self.breaker.try_probe()
            self.breaker.probed(ok)
            self.state = State.CLOSED if ok else State.OPEN
            self.due = self.clock.now + 10
            if ok:
                self.rows = {"read": 0, "write": 0}

    @invariant()
    def agrees(self) -> None:
        assert self.breaker.status().state is self.state
        assert self.breaker.allows() is (self.state is State.CLOSED)
        self.breaker.check_integrity()


TestBreaker = BreakerMachine.TestCase
TestBreaker.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
