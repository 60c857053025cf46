"""The rule declines only what was measured to be slower, never before enough was measured, and changes its mind."""

from hypothesis import given
from hypothesis import strategies as st

from app.tiers.loading import ENOUGH, LoadingRule


def taught(prefill_s: float, load_s: float, times: int = ENOUGH, tokens: int = 640) -> LoadingRule:
    """One to which prompts of 640 tokens took so long to compute, and to load."""
    rule = LoadingRule(chunk_tokens=64)
    rule.worth_loading(10, parts=2)  # says that ten chunks are twenty objects
    for number in range(times):
        rule.computed(tokens, prefill_s)
        rule.load_began((0, number), 20, 100.0)
        rule.load_ended((0, number), 100.0 + load_s)
    rule.check_integrity()
    return rule


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.integers(0, ENOUGH - 1))
def test_before_enough_was_measured_everything_is_loaded(prefill_s: float, load_s: float, times: int) -> None:
    assert taught(prefill_s, load_s, times).worth_loading(10, 2)


@given(st.floats(0.01, 10), st.floats(1.5, 6))
def test_the_sooner_one_wins(seconds: float, ratio: float) -> None:
    assert taught(seconds * ratio, seconds).worth_loading(10, 2)
    slow = taught(seconds, seconds * ratio)
    assert not slow.worth_loading(10, 2)
    assert slow.status()["l2_loads_declined"] == 1


def test_a_tier_that_became_fast_is_used_again() -> None:
    rule = taught(0.1, 1.0)
    asked = [rule.worth_loading(10, 2) for _ in range(40)]
    assert any(asked), "it must be tried, or nothing would ever be measured again"
    assert sum(asked) < 5
    for number in range(50):
        rule.load_began((1, number), 20, 0.0)
        rule.load_ended((1, number), 0.01)
    assert rule.worth_loading(10, 2)


def test_loads_that_never_end_are_forgotten() -> None:
    rule = LoadingRule()
    for number in range(5000):
        rule.load_began((0, number), 1, 0.0)
    rule.load_ended((9, 9), 1.0)
    rule.check_integrity()
