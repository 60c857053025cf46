"""What is sent to engines, and how an application is given another router. The run itself needs engines."""

from typing import Any

import pytest

from app.bench.load import Prompts
from app.bench.load.record import RequestRecord
from app.bench.routing_live import (
    RAYS,
    STRATEGIES,
    Dialogues,
    Hot,
    Phase,
    _figures,
    check_fresh,
    control,
    dialogues,
    hot,
)
from app.routing.core import RoutingCore
from tests.bench.load.records import record


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> Prompts:
    return Prompts(tokenizer)


def test_dialogues_share_two_system_prompts_and_grow(prompts: Prompts) -> None:
    what = Dialogues(conversations=4, turns=3, system_tokens=40, user_tokens=8, answer_tokens=5)
    plan = dialogues(prompts, what, seed=1)
    assert len({each.requests[0].messages[0]["content"] for each in plan}) == 2
    for each in plan:
        lengths = [request.prompt_tokens for request in each.requests]
        assert lengths == sorted(set(lengths))
        assert each.requests[-1].messages[: len(each.requests[0].messages)] == each.requests[0].messages
        assert each.requests[0].headers["x-session-id"] == each.name
    assert dialogues(prompts, what, seed=1) == plan


def test_most_requests_share_the_hot_prefix(prompts: Prompts) -> None:
    plan = hot(prompts, Hot(requests=50, prefix_tokens=20, own_tokens=4), seed=2)
    begins = [str(each.requests[0].messages[0]["content"])[:40] for each in plan]
    most = max(begins.count(begin) for begin in begins)
    assert 30 <= most < 50


def test_each_strategy_has_a_router_of_its_own() -> None:
    for strategy in STRATEGIES:
        told = control(strategy, "m", 64, 1)
        if strategy in RAYS:
            assert told["router"].startswith("ray.")
        else:
            assert RoutingCore(told["kwargs"]["strategy"], told["kwargs"]["options"]).policy.name == strategy


def ended(ttft_s: float | None, replica: str = "a", cached: int = 0, error: str = "") -> RequestRecord:
    return record(ttft_s=ttft_s, replica=replica, cached_tokens=cached, error=error)


def test_figures_are_over_all_rounds_and_count_failures_apart() -> None:
    first = Phase("s", 0, [ended(0.1, cached=4), ended(0.3)], [ended(0.1, "a"), ended(0.1, "a"), ended(0.1, "b")])
    second = Phase("s", 1, [ended(0.2, cached=6), ended(None, error="lost")], [ended(0.1, name) for name in "abc"])
    figures = _figures([first, second])
    assert figures["ttft_mean_s"] == 0.2
    assert figures["hit_tokens"] == 10
    assert (figures["requests"], figures["failed"]) == (3, 1)
    assert figures["hot_max_share"] == 1.5, "two of three requests where one is fair, and one: the median"
    assert [one["ttft_mean_s"] for one in figures["rounds"]] == [0.2, 0.2]


def test_what_was_not_sent_has_no_figures() -> None:
    assert _figures([Phase("s", 0, hot=[ended(0.1)])]).keys() == {"hot_max_share", "hot_unfair_time", "failed"}
    assert not {"hot_max_share", "hot_unfair_time"} & _figures([Phase("s", 0, [ended(0.1)])]).keys()


def test_a_round_in_which_nothing_was_answered_is_counted_and_not_hidden() -> None:
    figures = _figures([Phase("s", 0, [ended(None, error="lost")])])
    assert (figures["requests"], figures["failed"], figures["rounds"]) == (0, 1, [{}])


def test_a_phase_that_began_with_something_cached_is_not_counted() -> None:
    check_fresh([ended(0.1), ended(0.1, cached=64)])
    with pytest.raises(AssertionError, match="not empty: 64 tokens"):
        check_fresh([ended(0.1, cached=64), ended(0.1)])
