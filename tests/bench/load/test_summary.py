import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.load.arrivals import poisson
from app.bench.load.summary import Spread, by, percentile, summarize
from tests.bench.load.records import failed, hit, record


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_percentiles_are_those_of_the_standard_library(values: list[float]) -> None:
    ordered = sorted(values)
    cuts = statistics.quantiles(ordered, n=100, method="inclusive")
    for percent in (1, 50, 90, 99):
        assert percentile(ordered, percent) == pytest.approx(cuts[percent - 1], abs=1e-6)


def test_nothing_has_no_spread() -> None:
    assert Spread.of([]) is None
    one = Spread.of([2.0])
    assert one is not None
    assert (one.median, one.p99, one.stdev, one.count) == (2.0, 2.0, 0.0, 1)


def test_latencies_are_of_answered_requests_and_failures_count_as_missed() -> None:
    records = [record(ttft_s=0.5), record(ttft_s=1.5), record(ttft_s=2.5), failed()]
    summary = summarize(records, ttft_target_s=1.5)
    assert (summary.requests, summary.failed) == (4, 1)
    assert summary.ttft_s is not None
    assert summary.ttft_s.median == 1.5
    assert summary.goodput_share == 0.5
    assert summary.goodput_rps == pytest.approx(2 / summary.duration_s)
    assert summarize(records).goodput_rps is None


def test_rates_are_over_the_time_from_the_first_schedule_to_the_last_end() -> None:
    records = [record(scheduled_s=1.0, started_s=1.5, e2e_s=1.0), record(scheduled_s=2.0, started_s=2.0, e2e_s=3.0)]
    summary = summarize(records)
    assert summary.duration_s == 4.0
    assert summary.requests_per_s == 0.5
    assert summary.output_tokens_per_s == 6 / 4
    assert summary.late_s is not None
    assert summary.late_s.max == 0.5


def test_tokens_by_tier_add_up_and_the_hit_ratio_is_of_requests_that_tell() -> None:
    records = [hit(l0=32), hit(l1=64), hit(l2=64, total=200), record(prompt_tokens=10_000)]
    summary = summarize(records)
    assert summary.tokens == {"l0": 32, "l1": 64, "l2": 64, "computed": 240}
    assert summary.hit_ratio == 160 / 400
    assert summarize([record()]).hit_ratio is None


def test_groups_keep_their_order() -> None:
    groups = by([record(phase="b"), record(phase="a"), record(phase="b")], lambda each: each.phase)
    assert [(name, each.requests) for name, each in groups.items()] == [("b", 2), ("a", 1)]


def test_an_empty_run_is_a_summary_of_zeros() -> None:
    summary = summarize([], 1.0)
    assert (summary.requests, summary.duration_s, summary.goodput_share, summary.ttft_s) == (0, 0.0, 0.0, None)


def test_arrivals_are_poisson_and_follow_from_the_seed() -> None:
    times = poisson(4.0, 4000, seed=3)
    assert times == poisson(4.0, 4000, seed=3) != poisson(4.0, 4000, seed=4)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    mean = statistics.fmean(gaps)
    assert times[0] == 0
    assert mean == pytest.approx(0.25, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(mean, rel=0.1)  # as an exponential's


def test_a_row_says_the_summarys_own_figures_and_nothing_where_nothing_was_answered() -> None:
    summary = summarize([record(ttft_s=0.5), record(ttft_s=1.5), failed()])
    assert summary.ttft_s is not None
    row = summary.row()
    assert (row["ttft_mean_s"], row["ttft_p90_s"]) == (summary.ttft_s.mean, summary.ttft_s.p90)
    assert (row["requests"], row["failed"]) == (3, 1)
    assert summarize([failed()]).row()["ttft_median_s"] is None
