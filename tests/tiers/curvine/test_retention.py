"""What the pool gives up first."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.tiers.curvine.ledger import Ledger
from app.tiers.curvine.retention import UNKNOWN_DEPTH, Entry, Score, Worth, policy


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000)), max_size=60), st.sampled_from(["lru", "score"]))
@settings(deadline=None)
def test_a_beginning_never_goes_before_its_continuation(uses: list[tuple[int, int]], name: str) -> None:
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


def test_the_score_prefers_reuse_and_dear_models() -> None:
    score = Score(half_life_s=100, seconds_per_byte=lambda family: 3.0 if family == "dear" else 1.0)
    once = Entry("cheap", "a", 10, 0.0, 1.0, UNKNOWN_DEPTH)
    often = score.used(score.used(once, 0.0), 0.0)
    dear = Entry("dear", "b", 10, 0.0, 1.0, UNKNOWN_DEPTH)
    assert score.value(often, 0) > score.value(once, 0)
    assert score.value(dear, 0) > score.value(once, 0)
    assert score.value(once, 1e9) < score.value(once, 0), "ages do not underflow"
    assert score.used(often, 100).weight == pytest.approx(2.5)


def test_an_unknown_model_is_worth_the_average_and_nonsense_nothing() -> None:
    worth = Worth()
    assert worth("any") == 1.0
    worth.learn({"a": 2.0, "b": 4.0, "c": -1.0, "d": 0.0})
    assert worth("any") == 3.0
    assert worth("c") == worth("d") == 3.0


def test_an_unknown_policy() -> None:
    with pytest.raises(KeyError):
        policy("mru")
