"""The least busy of any set of replicas is found as if everybody had been looked at; ties go round."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.routing.load_row import Row
from app.routing.order import Order

CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "move", "ask", "renew"]), st.integers(0, 59), st.integers(0, 40)),
    max_size=200,
)


def make(replicas: int) -> tuple[Order, dict[int, Row]]:
    order = Order(random.Random(4).random)
    rows = {slot: Row(slot) for slot in range(replicas)}
    for row in rows.values():
        order.add(row)
    return order, rows


@given(CHANGES, st.integers(0, 1 << 32))
@settings(max_examples=200, deadline=None)
def test_whatever_changes_the_first_few_are_those_of_a_sorted_list(
    changes: list[tuple[str, int, int]], seed: int
) -> None:
    rng = random.Random(seed)
    order, rows = make(30)
    number = dict.fromkeys(rows, 0)
    for what, slot, value in changes:
        if what == "add" and slot not in rows:
            rows[slot], number[slot] = Row(slot), 0
            order.add(rows[slot])
        elif what == "remove" and slot in rows:
            order.remove(rows.pop(slot))
            del number[slot]
        elif what == "move" and slot in rows:
            number[slot] = value
            order.move(rows[slot], value)
        elif what == "renew":
            number = {one: busy // 2 for one, busy in number.items()}
            order.renew(lambda row, number=number: number[row.slot])  # type: ignore[misc]
        elif what == "ask" and rows:
            asked = rng.sample(sorted(rows), rng.randint(1, len(rows)))
            mask = sum(1 << one for one in asked)
            expected = sorted(number[one] for one in asked)
            least = order.least(mask)
            assert least is not None
            assert least.slot in asked
            assert number[least.slot] == expected[0]
            first = [row.slot for row in order.first(mask, value)]
            assert len({*first}) == len(first)
            assert {*first} <= {*asked}
            assert [number[one] for one in first] == expected[:value]
        order.check_integrity(lambda row, number=number: number[row.slot])  # type: ignore[misc]


def test_of_nobody_nobody_is_the_least_busy() -> None:
    order, _ = make(3)
    assert order.least(0) is None
    assert order.first(0, 5) == []


@pytest.mark.parametrize("replicas", [2, 5, 64])
def test_ties_go_round_and_not_in_the_same_order_each_time(replicas: int) -> None:
    order, rows = make(replicas)
    everyone = (1 << replicas) - 1
    drawn = []
    for _ in range(200 * replicas):
        row = order.least(everyone)
        assert row is not None
        drawn.append(row.slot)
        order.move(row, 1.0)
        order.move(row, 0.0)
    counts = Counter(drawn)
    assert set(counts) == set(rows)
    assert max(counts.values()) < 1.5 * min(counts.values())
    rounds = {tuple(drawn[at : at + replicas]) for at in range(0, len(drawn), replicas)}
    assert len(rounds) > 1


def test_changes_do_not_pile_up_in_a_large_fleet() -> None:
    """One replica of many goes up and down for ever, and never comes to the top."""
    order, rows = make(100)
    for slot in range(1, 100):
        order.move(rows[slot], 5.0)
    number = dict.fromkeys(rows, 5.0) | {0: 0.0}
    for turn in range(5000):
        number[7] = 10.0 - turn % 2
        order.move(rows[7], number[7])
        order.check_integrity(lambda row: number[row.slot])
    assert order.least((1 << 100) - 1) is rows[0]


def test_those_that_are_busier_than_all_others_are_found_without_walking_past_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order, rows = make(1024)
    for slot, row in rows.items():
        order.move(row, float(slot))
    steps = []
    top = Order._top
    monkeypatch.setattr(Order, "_top", lambda self: steps.append(1) or top(self))  # type: ignore[func-returns-value]
    busy = ((1 << 1024) - 1) >> 512 << 512
    least = order.least(busy)
    assert least is not None
    assert least.slot == 512
    assert [row.slot for row in order.first(busy, 20)] == list(range(512, 532))
    assert len(steps) < 2 * 512 // 4
