"""Every rule pays for the first load of a node; what it keeps, it does not pay for again."""

from app.bench.l1_retention import NODES, compare, loaded_before, loads, nothing

PROMPT = tuple(range(10))
ROUND = [PROMPT] * NODES
FIRST = (NODES - 1) * len(PROMPT)
"""Of a round in which one node computes and stores, and the others load."""


def test_without_keeping_each_round_loads_again() -> None:
    assert loads(ROUND, 100, lambda _: nothing) == FIRST
    assert loads(ROUND * 3, 100, lambda _: nothing) == 3 * FIRST


def test_what_was_loaded_before_is_loaded_twice() -> None:
    assert loads(ROUND * 4, 100, lambda _: loaded_before()) == 2 * FIRST


def test_the_rule_that_serves_loads_once() -> None:
    assert loads(ROUND * 4, 100, lambda node: node.retainer.choose) == FIRST


def test_what_does_not_fit_is_loaded_again() -> None:
    small, large = compare([*ROUND, *[tuple(range(100, 110))] * NODES] * 3, rooms=[12, 100])
    assert large["tierserve"] == 2 * FIRST
    assert small["tierserve"] > large["tierserve"]


def test_only_a_beginning_without_a_gap_is_loaded() -> None:
    other = (0, 1, 99, 3, 4)
    assert loads([PROMPT, other], 100, lambda _: nothing) == 2
