"""Slots are never confused between replicas, and a mask operation is exact."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing.roster import Roster, any_slot, nth_slot, slots_of


@given(st.sets(st.integers(0, 1200)))
def test_masks_list_and_index_their_slots(slots: set[int]) -> None:
    mask = sum(1 << slot for slot in slots)
    assert list(slots_of(mask)) == sorted(slots)
    assert [nth_slot(mask, n) for n in range(mask.bit_count())] == sorted(slots)


@pytest.mark.parametrize("slots", [{5}, {0, 1, 2, 3}, {0, 2, 900}, {7, 8}])
def test_any_slot_is_even(slots: set[int]) -> None:
    draw = random.Random(1).random
    mask = sum(1 << slot for slot in slots)
    counts = Counter(any_slot(mask, draw) for _ in range(4000))
    assert set(counts) == slots
    assert max(counts.values()) < 1.2 * min(counts.values())


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=400))
def test_a_slot_is_reused_only_after_everybody_forgot_it(steps: list[tuple[bool, int]]) -> None:
    roster, kept = Roster(), {"mask": 0}

    def clean(dead: int) -> None:
        kept["mask"] &= ~dead

    roster.on_reclaim(clean)
    for add, number in steps:
        names = [name for name in (f"{number}",) if name in roster]
        if add and not names:
            slot = roster.add(f"{number}")
            assert not kept["mask"] >> slot & 1, "a new replica found somebody else's bit"
            kept["mask"] |= 1 << slot
        elif not add:
            roster.remove(f"{number}")
        roster.check_integrity()


def test_many_departures_are_reclaimed_together() -> None:
    roster = Roster()
    cleaned: list[int] = []
    roster.on_reclaim(cleaned.append)
    for number in range(100):
        roster.add(f"r{number}")
        roster.remove(f"r{number}")
    assert len(cleaned) == 1
    assert cleaned[0].bit_count() == 64
    roster.check_integrity()
