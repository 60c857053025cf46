from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.tiers.leases import Leases

LEASE_S = 30.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_is_not_over_before_anybody_came() -> None:
    clock = Clock()
    leases = Leases(LEASE_S, clock)
    clock.now += 10 * LEASE_S
    assert not leases.over()


def test_is_over_a_while_after_the_last_release() -> None:
    clock = Clock()
    leases = Leases(LEASE_S, clock)
    leases.renew("a")
    clock.now += 5
    leases.release("a")
    assert not leases.over()
    clock.now += LEASE_S + 1
    assert leases.over()


def test_a_holder_that_dies_is_forgotten_when_its_lease_runs_out() -> None:
    clock = Clock()
    leases = Leases(LEASE_S, clock)
    leases.renew("a")
    clock.now += LEASE_S + 1
    assert leases.holders() == []
    assert not leases.over(), "its successor has as much time as after a release"
    clock.now += LEASE_S
    assert leases.over()


def test_a_successor_keeps_it_going() -> None:
    clock = Clock()
    leases = Leases(LEASE_S, clock)
    leases.renew("a")
    leases.release("a")
    clock.now += LEASE_S - 1
    leases.renew("b")
    clock.now += LEASE_S - 1
    assert leases.holders() == ["b"]
    assert not leases.over()


class AgainstAModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.leases = Leases(LEASE_S, self.clock)
        self.model: dict[str, float] = {}

    @rule(holder=st.sampled_from("abc"))
    def renew(self, holder: str) -> None:
        self.leases.renew(holder)
        self.model[holder] = self.clock.now

    @rule(holder=st.sampled_from("abc"))
    def release(self, holder: str) -> None:
        self.leases.release(holder)
        self.model.pop(holder, None)

    @rule(seconds=st.floats(0.1, 40))
    def passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def agrees(self) -> None:
        living = sorted(holder for holder, at in self.model.items() if self.clock.now - at < LEASE_S)
        assert self.leases.holders() == living
        assert not (living and self.leases.over())
        self.leases.check_integrity()


TestAgainstAModel = AgainstAModel.TestCase
