import pytest

from app.bench.load import RequestRecord
from app.bench.ttft_result import Options, PoolSpeed, answers_equal, check_origin, result_of
from app.errors import ServingError
from tests.bench.load.records import hit

TTFT = {"cold": 10.0, "l2": 0.5, "l1": 0.4, "l0": 0.2}


def measured(tokens: int, turn: int = 0, chunk: int = 64, **ttft: float) -> list[RequestRecord]:
    """One round as it should be: every full chunk from the tier that is asked for."""
    full = tokens // chunk * chunk
    return [
        hit(
            **({phase: full} if phase != "cold" else {}),
            total=tokens,
            planned_tokens=tokens,
            phase=phase,
            ttft_s=seconds,
            conversation=str(tokens),
            turn=turn,
        )
        for phase, seconds in {**TTFT, **ttft}.items()
    ]


def test_rows_are_medians_with_the_keys_that_others_read() -> None:
    records = [*measured(2500, 0, l2=0.4), *measured(2500, 1, l2=0.5), *measured(2500, 2, l2=0.9)]
    result = result_of(records, Options((2500,), 3), {}, None, 64, "c")
    (row,) = result.figures["rows"]
    assert row["tokens"] == 2500
    assert (row["cold_s"], row["l2_s"], row["l1_s"], row["l0_s"]) == (10.0, 0.5, 0.4, 0.2)
    assert (row["hit_tokens"], row["full_chunk_tokens"]) == (2496, 2496)
    assert row["l2_speed_up"] == 20.0
    assert result.figures["answers_equal"]
    assert len(result.charts) == 2


def test_goals_are_judged_by_what_was_measured() -> None:
    records = [*measured(500, l2=5.0), *measured(2500)]
    # 0.5 s is within (0.4 s + 2,496 tokens at 1,000 bytes / 24.96 MB a second = 0.1 s) * 1.3; 5 s is not.
    result = result_of(records, Options((500, 2500), 1), {}, PoolSpeed(1000.0, 24.96e6), 64, "c")
    measured_values = [goal.measured for goal in result.goals]
    assert measured_values[:4] == [20.0, 2.0, 1.0, 2496 / 2500]
    assert [goal.met for goal in result.goals] == [True, True, True, True, False]
    within = result_of(measured(2500), Options((2500,), 1), {}, PoolSpeed(1000.0, 24.96e6), 64, "c")
    assert within.goals[-1].measured == pytest.approx(1.0)
    assert within.goals[-1].met


def test_a_goal_about_a_length_that_was_not_measured_is_not_met() -> None:
    first, *_ = result_of(measured(500), Options((500,), 1), {}, None, 64, "c").goals
    assert first.measured is None
    assert not first.met


def test_tokens_from_another_tier_spoil_the_measurement() -> None:
    for record in measured(500):
        check_origin(record, 64)
    with pytest.raises(ServingError, match="only l2"):
        check_origin(hit(l1=64, l2=384, total=500, phase="l2"), 64)
    with pytest.raises(ServingError, match="only cold"):
        check_origin(hit(l0=32, total=500, phase="cold"), 64)
    with pytest.raises(ServingError, match="only l1"):
        check_origin(hit(total=500, phase="l1"), 64)


def test_other_servers_have_rows_of_cold_and_again() -> None:
    records = [record for record in measured(500) if record.phase in ("cold", "l0")]
    result = result_of(records, Options((500,), 1), {}, None, 0, "c")
    (row,) = result.figures["rows"]
    assert (row["cold_s"], row["l0_s"], row["l1_s"], row["l2_s"]) == (10.0, 0.2, None, None)
    assert (row["full_chunk_tokens"], row["hit_tokens"]) == (None, 448)
    assert result.goals == ()


def test_warm_up_counts_nowhere_and_is_kept_in_the_file() -> None:
    warm = hit(total=700, phase="warm-up", planned_tokens=700, ttft_s=99.0)
    result = result_of([warm, *measured(500)], Options((500,), 1), {}, None, 64, "c")
    assert len(result.records) == 5
    assert result.figures["rows"][0]["cold_s"] == 10.0


def test_answers_that_differ_are_told() -> None:
    first, second, *_ = measured(500)
    assert answers_equal([first, second])
    assert not answers_equal([first, hit(phase="l2", conversation="500", text="other")])
