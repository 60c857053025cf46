"""round_robin: even and blind."""

from collections import Counter

from tests.routing.conftest import Fleet

BODY = {"model": "m", "prompt": "hello" * 500}


def test_it_is_exactly_even() -> None:
    fleet = Fleet("round_robin", 5)
    assert set(Counter(fleet.serve(BODY) for _ in range(100)).values()) == {20}


def test_replicas_may_come_and_go() -> None:
    fleet = Fleet("round_robin", 5)
    fleet.serve(BODY)
    fleet.core.replica_died("r2")
    fleet.names.remove("r2")
    fleet.names.append("new")
    fleet.update()
    assert set(Counter(fleet.serve(BODY) for _ in range(100)).values()) == {20}


def test_the_ranking_names_others_in_turn_for_when_the_first_is_full() -> None:
    fleet = Fleet("round_robin", 3)
    _, ranking = fleet.choose(BODY)
    assert sorted(one.replica for one in ranking.choices) == ["r0", "r1", "r2"]
