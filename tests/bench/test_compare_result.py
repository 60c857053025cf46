from typing import Any

import pytest

from app.bench.compare_result import (
    charts_of,
    figures_of,
    in_a_row,
    part_of,
    ratios_of,
    same_answers,
    tables_of,
)
from app.bench.load import RequestRecord
from tests.bench.load.records import failed, record


def answered(ttft_s: float, index: int = 0, **fields: object) -> RequestRecord:
    return record(index=index, ttft_s=ttft_s, e2e_s=2 * ttft_s, cached_tokens=50, **fields)


OURS = [[answered(1.0), answered(1.0, 1, started_s=2.0, scheduled_s=2.0)], [answered(3.0)]]
SLOWER = [[answered(2.0), answered(2.0, 1, started_s=4.0, scheduled_s=4.0)], [answered(6.0)]]
FASTER = [[answered(0.5), answered(0.5, 1, started_s=1.0, scheduled_s=1.0)], [answered(1.5)]]


def test_rounds_follow_each_other_without_a_gap() -> None:
    joined = in_a_row(OURS)
    assert [each.started_s for each in joined] == [0.0, 2.0, 4.0]
    assert [each.index for each in joined] == [0, 1, 2]


def test_the_rate_is_over_the_time_that_rounds_took() -> None:
    figures = figures_of(OURS)
    assert figures["requests_per_s"] == pytest.approx(3 / 10)
    assert figures["ttft_mean_s"] == pytest.approx(5 / 3)
    assert figures["ttft_mean_by_round_s"] == [1.0, 3.0]
    assert (figures["hit_ratio"], figures["computed_tokens"]) == (0.5, 150)


def test_failed_requests_are_counted_and_not_timed() -> None:
    figures = figures_of([[answered(1.0), failed(index=1)]])
    assert (figures["requests"], figures["failed"], figures["ttft_mean_s"]) == (2, 1, 1.0)


def test_ratios_are_above_one_where_ours_is_better() -> None:
    ours = figures_of(OURS)
    assert list(ratios_of(ours, figures_of(SLOWER)).values()) == pytest.approx([2.0] * 5)
    assert list(ratios_of(ours, figures_of(FASTER)).values()) == pytest.approx([0.5] * 5)


def test_what_was_not_measured_has_no_ratio() -> None:
    nothing = ratios_of(figures_of(OURS), figures_of([[failed()]]))
    assert {name for name, ratio in nothing.items() if ratio is None} == {
        "ttft_mean_s",
        "ttft_median_s",
        "ttft_p90_s",
        "e2e_median_s",
        "requests_per_s",
    }


def test_answers_are_compared_request_by_request() -> None:
    ours = [[record(index=0, text="a"), record(index=1, text="b")]]
    theirs = [[record(index=1, text="b"), record(index=0, text="x"), failed(index=2)]]
    assert same_answers(ours, theirs) == 0.5
    assert same_answers((), theirs) is None


def part(**systems: list[list[RequestRecord]]) -> dict[str, Any]:
    return part_of({"ours": OURS, **systems}, "ours")


def rows(parts: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    return {f"{table.heads[0]}/{row[0]}": row for table in tables_of(parts, "ours") for row in table.rows}


def test_the_table_says_where_ours_loses() -> None:
    found = rows({"chats": part(slow=SLOWER), "alone": part(fast=FASTER)})
    won, lost = found["chats, beside/slow"], found["alone, beside/fast"]
    assert (won[1], won[-1]) == ("2.00 x", "nothing")
    assert (lost[1], lost[-1]) == ("0.50 x", "TTFT mean, TTFT p50, TTFT p90, E2E p50, requests/s")


def test_a_page_can_tell_the_parts_tables_apart_by_their_heads() -> None:
    heads = [table.heads[0] for table in tables_of({"chats": part(slow=SLOWER), "alone": part(fast=FASTER)}, "ours")]
    assert heads == ["chats", "chats, beside", "alone", "alone, beside", "how sure"]


def test_without_ours_there_is_nothing_to_compare_with() -> None:
    found = part_of({"slow": SLOWER}, "ours")
    assert found["ratios"] == {}
    assert found["systems"]["slow"]["same_answers"] is None
    assert "chats/slow" in rows({"chats": found})


def test_rounds_and_failures_are_told() -> None:
    found = rows({"chats": part(bad=[[answered(1.0), failed(index=1)]])})
    assert found["how sure/chats: ours"][1:5] == ("3", "0", "1.000 s", "3.000 s")
    assert found["how sure/chats: bad"][1:5] == ("2", "1", "1.000 s", "1.000 s")


def test_the_title_tells_a_loss_as_plainly_as_a_win() -> None:
    rounds = {"chats": {"ours": OURS, "slow": SLOWER, "fast": FASTER}}
    parts = {"chats": part_of(rounds["chats"], "ours")}
    assert charts_of(rounds, parts, "ours", "")[0].title == "Chats: fast is 2.0 x sooner than ours"
    won = {"chats": {"ours": OURS, "slow": SLOWER}}
    charts = charts_of(won, {"chats": part_of(won["chats"], "ours")}, "ours", "")
    assert charts[0].title == "Chats: ours is 2.0 x sooner than slow"
    assert [chart.name for chart in charts] == ["ttft", "chats"]
