"""Costs are sane before calibration, true after it, and unmoved by a hiccup."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cost import CostModel, Line


def test_before_calibration_the_order_of_tiers_is_right() -> None:
    cost = CostModel()
    assert cost.load_s("l1", 8000) < cost.load_s("l2", 8000) < cost.prefill_s(8000)
    assert cost.worth_loading("l1", 1000)
    assert not cost.worth_loading("l2", 32)
    assert cost.prefill_s(0) == cost.load_s("l1", 0) == 0
    assert cost.wait_s(0) == 0


def test_it_learns_a_machine_a_hundred_times_slower_within_a_few_answers() -> None:
    cost = CostModel()
    for tokens in (900, 1500, 300, 2000):
        cost.observe_prefill(tokens, 0.2 + tokens / 150)
    assert cost.prefill_s(1900) == pytest.approx(0.2 + 1900 / 150, rel=0.15)
    cost.check_integrity()


def test_it_finds_latency_and_rate_in_noise() -> None:
    rng = random.Random(2)
    line = Line(0.0, 1e-6)
    for _ in range(400):
        tokens = rng.choice([64, 256, 1024, 4096])
        line.observe(tokens, (0.03 + tokens / 20_000) * rng.uniform(0.9, 1.1))
    assert line.fixed == pytest.approx(0.03, rel=0.2)
    assert 1 / line.slope == pytest.approx(20_000, rel=0.2)


def test_one_hiccup_does_not_move_it_and_a_lasting_change_does() -> None:
    line = Line(0.0, 1e-3)
    for _ in range(100):
        line.observe(1000, 1.0)
    line.observe(1000, 300.0)
    assert line.at(1000) < 1.3
    for _ in range(200):
        line.observe(1000, 3.0)
    assert line.at(1000) == pytest.approx(3.0, rel=0.1)


@given(st.lists(st.tuples(st.integers(-5, 200_000), st.floats(allow_nan=True, allow_infinity=True)), max_size=80))
def test_no_observation_makes_a_cost_negative_or_absurd(observations: list[tuple[int, float]]) -> None:
    cost = CostModel()
    for tokens, seconds in observations:
        cost.observe_prefill(tokens, seconds)
        cost.observe_load("l2", tokens, seconds)
        cost.check_integrity()
        assert 0 < cost.prefill_s(1000) < 1e9
        assert cost.prefill_s(1000) <= cost.prefill_s(2000)


def test_a_mostly_loaded_prompt_does_not_calibrate_prefill() -> None:
    cost = CostModel()
    before = cost.prefill_s(1000)
    cost.observe_first_token(5.0, computed=10, l1=4000)
    assert cost.prefill_s(1000) == before
    cost.observe_first_token(5.0, computed=1000)
    assert cost.prefill_s(1000) > before


def test_a_tier_that_nobody_measured_keeps_its_proportion_to_computing() -> None:
    cost = CostModel()
    assert cost.load_s("l1", 1000) == pytest.approx(0.013)
    for _ in range(20):
        cost.observe_prefill(1000, 20.0)
    assert cost.load_s("l1", 1000) == pytest.approx(0.013 * 100, rel=0.1)
    assert cost.load_s("l1", 1000) < cost.load_s("l2", 1000) < cost.prefill_s(1000)
    cost.observe_load("l1", 1000, 0.02)
    assert cost.load_s("l1", 1000) < 0.1


def test_a_mostly_loaded_prompt_tells_how_fast_its_tier_is() -> None:
    """A laptop, where loading takes twenty times what the prior says: until it is learned, moving looks free."""
    cost = CostModel()
    for tokens in (500, 1000, 2000):
        cost.observe_first_token(0.1 + tokens / 300, computed=tokens)
    for tokens in (600, 700, 900, 800) * 5:
        cost.observe_first_token(0.1 + 20 / 300 + 0.05 + tokens / 4000, computed=20, l1=tokens)
    assert cost.first_token(20, l1=800).total_s == pytest.approx(0.1 + 20 / 300 + 0.05 + 800 / 4000, rel=0.1)
    assert cost.prefill_s(1000) == pytest.approx(0.1 + 1000 / 300, rel=0.1)
    cost.check_integrity()


def test_of_two_tiers_both_are_taken_to_be_slow() -> None:
    cost = CostModel()
    l1, l2 = cost.load_s("l1", 512), cost.load_s("l2", 512)
    for _ in range(10):
        cost.observe_first_token(cost.prefill_s(8) + 3 * (l1 + l2), computed=8, l1=512, l2=512)
    assert cost.load_s("l1", 512) == pytest.approx(3 * l1, rel=0.1)
    assert cost.load_s("l2", 512) == pytest.approx(3 * l2, rel=0.1)


def test_a_load_that_took_no_time_at_all_counts_as_a_quick_one() -> None:
    cost = CostModel()
    before = cost.load_s("l1", 512)
    cost.observe_first_token(cost.prefill_s(8) / 2, computed=8, l1=512)
    assert 0 < cost.load_s("l1", 512) < before
    cost.check_integrity()


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000)), max_size=80
    )
)
def test_no_first_token_makes_a_cost_negative_or_absurd(told: list[tuple[float, int, int, int]]) -> None:
    cost = CostModel()
    for seconds, computed, l1, l2 in told:
        cost.observe_first_token(seconds, computed, l1, l2)
        cost.check_integrity()
        assert 0 < cost.first_token(1000, 1000, 1000).total_s < 1e9


def test_the_parts_add_up() -> None:
    cost = CostModel()
    parts = cost.first_token(1000, 2000, 3000, pending_tokens=4000)
    assert parts.total_s == parts.wait_s + parts.load_s + parts.prefill_s
    assert parts.load_s == cost.load_s("l1", 2000) + cost.load_s("l2", 3000)
    assert cost.tokens_in(parts.prefill_s) >= 1000


def test_a_tier_that_was_slow_for_a_while_is_tried_again_and_believed_again() -> None:
    model = CostModel()
    for _ in range(3):
        model.observe_load("l2", 2000, 30.0)
    answers = [model.worth_loading("l2", 2000) for _ in range(32)]
    assert answers.count(True) == 2
    for _ in range(400):
        model.observe_load("l2", 2000, 0.1)
    assert model.worth_loading("l2", 2000)


def test_what_a_decision_rests_on_is_the_lesser_of_both_kinds() -> None:
    cost = CostModel()
    for _ in range(3):
        cost.observe_prefill(1000, 1.0)
    assert cost.observations("l2") == 0
    cost.observe_load("l2", 1000, 0.1)
    assert (cost.observations("l2"), cost.observations("l1")) == (1, 0)
