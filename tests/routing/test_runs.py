"""Runs: each replica once, at what it has; and never more of them than a ranking has time for."""

from hypothesis import given
from hypothesis import strategies as st

from app.routing.runs import disjoint, few_of

RUNS = st.lists(st.tuples(st.integers(1, 10_000), st.integers(1, (1 << 24) - 1)), max_size=60)


@given(runs=RUNS, everyone=st.integers(0, (1 << 24) - 1))
def test_each_replica_is_in_one_run_at_the_most_it_has(runs: list[tuple[int, int]], everyone: int) -> None:
    found = disjoint(runs, everyone)
    assert [held for held, _ in found] == sorted((held for held, _ in found), reverse=True)
    for slot in range(24):
        expected = max((held for held, mask in runs if mask >> slot & 1), default=0)
        mine = [held for held, mask in found if mask >> slot & 1]
        assert mine == ([expected] if everyone >> slot & 1 else [])


@given(lengths=st.lists(st.integers(1, 10_000), min_size=1, max_size=100))
def test_a_few_runs_stand_for_many_and_claim_nothing_that_is_not_there(lengths: list[int]) -> None:
    everyone = (1 << len(lengths)) - 1
    runs = disjoint([(held, 1 << slot) for slot, held in enumerate(lengths)], everyone)
    few = few_of(runs)
    assert len(few) <= 17
    assert few[:8] == runs[:8]
    assert sum(replicas for _, replicas in few) == everyone
    for slot, held in enumerate(lengths):
        (claimed,) = (one for one, replicas in few if replicas >> slot & 1)
        assert held - max(lengths) / 8 < claimed <= held
