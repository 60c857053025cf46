"""A replica that has too many while another has nothing."""

from app.bench.fairness import largest_share, unfair_time
from app.bench.load.record import RequestRecord
from tests.bench.load.records import record


def ran(replica: str, began: float, took: float) -> RequestRecord:
    return record(replica=replica, started_s=began, e2e_s=took)


def test_the_busiest_replica_s_share() -> None:
    assert largest_share([ran("a", 0, 1), ran("a", 0, 1), ran("b", 0, 1)], 3) == 2.0
    assert largest_share([], 3) == 0.0


def test_two_on_one_of_three_is_unfair_for_as_long_as_another_has_none() -> None:
    together = [ran("a", 0, 4), ran("a", 1, 1), ran("b", 0, 4)]
    assert unfair_time(together, 2) == 0.0, "both have something"
    assert unfair_time(together, 3) == 0.25, "2 of 3 in flight, where 1 is fair, for one second of four"


def test_one_alone_is_not_unfair_and_neither_are_many_on_all() -> None:
    assert unfair_time([ran("a", 0, 1), ran("a", 1, 1)], 3) == 0.0
    assert unfair_time([ran(name, 0, 1) for name in "abc" for _ in range(4)] + [ran("a", 0, 1)] * 9, 3) == 0.0
    assert unfair_time([], 3) == 0.0


def test_what_failed_is_not_counted() -> None:
    assert unfair_time([ran("a", 0, 1), record(replica="a", started_s=0, e2e_s=1, error="lost")], 3) == 0.0
