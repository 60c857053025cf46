"""prefix_aware: affinity while it pays, load when it does not, hot prefixes spread, corrected by what engines
report.
"""

from collections import Counter, deque
from itertools import pairwise
from typing import Any

import pytest

from app.routing.policy import CacheReport
from app.routing.prefix_aware import PrefixAware
from tests.routing.conftest import Fleet

SYSTEM = "You are a helpful assistant for a large company. " * 100


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
        **more,
    }


def own(number: int, length: int = 5000) -> dict[str, Any]:
    return {"model": "m", "prompt": f"{number:08d} " * (length // 9)}


def policy(fleet: Fleet) -> PrefixAware:
    assert isinstance(fleet.core.policy, PrefixAware)
    return fleet.core.policy


def test_a_conversation_returns_to_its_replica() -> None:
    fleet = Fleet("prefix_aware", 8)
    for number in range(20):
        assert (
            len({fleet.serve({"model": "m", "prompt": f"{number} " * 900 + "x" * 300 * turn}) for turn in range(5)})
            == 1
        )


def test_cold_requests_go_where_there_is_least_to_do() -> None:
    fleet = Fleet("prefix_aware", 8)
    counts = Counter(fleet.send(own(number))[1] for number in range(64))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_ties_are_broken_at_random() -> None:
    fleet = Fleet("prefix_aware", 4)
    counts = Counter(fleet.serve(own(number)) for number in range(400))
    assert min(counts.values()) > 60


def test_new_conversations_go_where_fewer_began() -> None:
    """All idle, nothing in common: what was given lately decides, since each conversation will come back."""
    fleet = Fleet("prefix_aware", 3)
    counts = Counter(fleet.serve(own(number)) for number in range(12))
    assert set(counts.values()) == {4}


def test_affinity_gives_way_when_waiting_costs_more_than_computing() -> None:
    fleet = Fleet("prefix_aware", 2)
    home = fleet.serve(chat("first"))
    others = 0
    for number in range(12):
        _, replica = fleet.send(chat(f"{number}"))
        others += replica != home
        if number == 0:
            assert replica == home
    assert others > 0


def test_the_score_has_no_cliff() -> None:
    """One request more on the holder changes its score by one request's worth, never by more."""
    fleet = Fleet("prefix_aware", 2)
    home = fleet.serve(chat("first"))
    scores = []
    for _ in range(30):
        _, ranking = fleet.choose(chat("again"))
        scores.append(next(one.score for one in ranking.choices if one.replica == home))
        fleet.core.settled(f"q{fleet.made}", home)
    differences = [later - earlier for earlier, later in pairwise(scores)]
    assert max(differences) - min(differences) <= len(SYSTEM) / 256


@pytest.mark.parametrize("replicas", [3, 8, 16])
def test_one_hot_prefix_for_most_of_the_traffic_leaves_nobody_idle(replicas: int) -> None:
    """80 % of requests share a prefix, each replica works on a few at a time: nobody gets 1.5 times its share."""
    fleet = Fleet("prefix_aware", replicas)
    running: deque[tuple[str, str]] = deque()
    served: Counter[str] = Counter()
    for number in range(3000):
        fleet.now += 0.05
        body = chat(f"{number} " * 40) if number % 5 else own(number)
        running.append(fleet.send(body))
        if number > 300:
            served[running[-1][1]] += 1
        if len(running) > 2 * replicas:
            fleet.core.ended(*running.popleft())
    fleet.core.check_integrity()
    assert len(served) == replicas
    assert max(served.values()) < 1.5 * sum(served.values()) / replicas


def test_what_a_conversation_has_for_itself_is_no_investment_for_others() -> None:
    """Eight quick turns under a system prompt: a busier home costs less than computing all of it elsewhere, although
    the system prompt alone would go anywhere by then."""
    fleet = Fleet("prefix_aware", 2)
    for number in range(20):
        fleet.serve(chat(f"{number} somebody else"))
    text = "mine"
    home = fleet.serve(chat(text))
    for turn in range(7):
        text += f" turn {turn} " + "w" * 1500
        fleet.now += 2
        fleet.core.settled(fleet.choose(own(turn, 4000))[0], home)
        assert fleet.serve(chat(text)) == home


def test_a_hot_prefix_with_little_traffic_stays_on_few_replicas() -> None:
    fleet = Fleet("prefix_aware", 8)
    served = set()
    for turn in range(6):
        fleet.now += 30
        served.add(fleet.serve(chat(f"{turn}")))
    assert len(served) == 1


def test_a_replica_that_died_or_came_back_holds_nothing() -> None:
    fleet = Fleet("prefix_aware", 3)
    home = fleet.serve(chat("x"))
    fleet.core.replica_died(home)
    name, ranking = fleet.choose(chat("x"))
    assert home not in [one.replica for one in ranking.choices]
    assert ranking.choices[0].match == 0
    fleet.core.settled(name, None)
    fleet.update()
    _, ranking = fleet.choose(chat("x"))
    assert all(one.match == 0 for one in ranking.choices)
    fleet.core.check_integrity()


def test_models_adapters_and_tenants_are_apart() -> None:
    fleet = Fleet("prefix_aware", 4)
    fleet.serve(chat("x"))
    for other in ({"model": "adapter"}, {"cache_salt": "tenant"}):
        _, ranking = fleet.choose(chat("x", **other))
        assert ranking.reason == "load"


def test_a_report_of_a_lost_hit_moves_the_horizon_and_a_good_one_does_not() -> None:
    fleet = Fleet("prefix_aware", 1)
    fleet.serve(own(1))
    fleet.serve(own(2))
    tokens = 1250
    fleet.serve(own(2), report=CacheReport(tokens, l0=1200, computed=50))
    assert fleet.choose(own(1))[1].choices[0].match > 1000
    fleet.serve(own(2), report=CacheReport(tokens, l0=0, computed=tokens))
    assert fleet.choose(own(1))[1].choices[0].match == 0, "older than what was evicted, so evicted"
    assert fleet.choose(own(2))[1].choices[0].match > 1000, "just computed, so held"
    assert policy(fleet).status()["corrections"] == 1


def test_a_request_that_computed_nothing_leaves_nothing() -> None:
    fleet = Fleet("prefix_aware", 1)
    fleet.serve(own(1), report=CacheReport(1250))
    assert fleet.choose(own(1))[1].choices[0].match == 0


def test_bytes_per_token_is_learned_from_reports() -> None:
    fleet = Fleet("prefix_aware", 1)
    for number in range(200):
        fleet.serve(own(number), report=CacheReport(2500, computed=2500))
    assert policy(fleet).status()["bytes_per_token"] == pytest.approx(2.0, abs=0.1)


def test_hits_in_shared_tiers_that_nobody_announced_raise_no_alarm_but_unexpected_ones_in_l0_do() -> None:
    shared, own_l0 = Fleet("prefix_aware", 2), Fleet("prefix_aware", 2)
    for number in range(70):
        shared.serve(own(number), report=CacheReport(1250, l2=1200, computed=50))
        own_l0.serve(own(number), report=CacheReport(1250, l0=1200, computed=50))
    assert policy(shared).status()["alarm_unseen"] == 0
    assert policy(own_l0).status()["alarm_unseen"] == 1


def test_a_burst_of_one_new_prompt_follows_the_first() -> None:
    """Nothing has completed yet, and still they share: what was dispatched is known at once."""
    fleet = Fleet("prefix_aware", 8)
    replicas = [fleet.send(chat(f"{number}"))[1] for number in range(3)]
    assert len(set(replicas)) <= 2


def test_memory_is_bounded_whatever_comes() -> None:
    fleet = Fleet("prefix_aware", 2, max_bytes=100_000)
    for number in range(500):
        fleet.serve(own(number, 3000))
    assert policy(fleet).status()["tree_bytes"] <= 100_000
    assert policy(fleet).status()["tree_evictions"] > 0


def test_a_hot_beginning_is_not_counted_as_held_once_per_request() -> None:
    """Everybody's system prompt lies in an engine once; a prompt of one's own takes room for all of it."""
    fleet = Fleet("prefix_aware", 2)
    for number in range(200):
        fleet.serve(chat(f"{number} what is this?"))
    hot, cold = fleet.choose(chat("what is that?"))[1], fleet.choose(own(1, len(SYSTEM)))[1]
    assert 10 * hot.held_units < cold.held_units
    assert cold.held_units == cold.prefill_units
