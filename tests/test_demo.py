"""A row of the demo is only printed if all rounds agree and the tier it is about served it."""

from dataclasses import replace

import pytest

from app.cache_report import CacheReport
from app.demo import PROMPT, _row
from app.errors import ServingError
from app.openai_stream import TimedAnswer

COLD = TimedAnswer(3.0, 4.0, "same", 100, 8, CacheReport(0, 0, 100, 0, 0, "a"))
L1 = replace(COLD, ttft_s=0.3, report=CacheReport(0, 96, 4, 96, 0, "b"))


def test_a_row_is_the_median_of_its_rounds() -> None:
    row = _row("cold", [COLD, replace(COLD, ttft_s=9.0), replace(COLD, ttft_s=1.0)])
    assert (row.ttft_s, row.answer) == (3.0, "same")
    assert row.tokens == {"l0": 0, "l1": 0, "l2": 0, "computed": 100}
    assert _row("l1", [L1]).tokens["l1"] == 96


@pytest.mark.parametrize(
    ("tier", "answers", "message"),
    [
        ("l1", [L1, replace(L1, text="other")], "rounds disagree in row l1"),
        ("l1", [L1, COLD], "rounds disagree in row l1"),
        ("l2", [L1], "nothing came from l2 in its row"),
        ("l1", [replace(L1, report=None)], "no complete cache report"),
        ("l1", [replace(L1, report=CacheReport(0, 96, 4, None, None))], "no complete cache report"),
    ],
)
def test_a_row_that_does_not_show_what_it_is_about(tier: str, answers: list[TimedAnswer], message: str) -> None:
    with pytest.raises(ServingError, match=message):
        _row(tier, answers)


def test_the_prompt_is_long_prose() -> None:
    words = PROMPT.read_text().split()
    assert 1000 < len(words) < 2500
