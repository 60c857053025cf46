"""Replicas in the order of how busy they are, kept up change by change, so that no question looks at all of them."""

from bisect import bisect_left
from collections.abc import Callable

from app.routing.load_row import Row
from app.routing.roster import slots_of

_TIE = 1e-6
"""What ties are broken by: up to so much is added at random, and as much more for each time that everybody could have
changed, so that nobody is last for long. Nothing that counts is as small.
"""


class Order:
    """Two lists side by side, sorted by `Row.key`. To bisect them and to move what lies behind is done in C: a change
    costs 0.4 us among 64 replicas.

    Not thread safe: its owner is the book of load.
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._keys: list[float] = []
        self._rows: list[Row] = []
        self._by_slot: dict[int, Row] = {}
        self._turn = 0.0

    def add(self, row: Row, number: float) -> None:
        self._by_slot[row.slot] = row
        self._insert(row, number)

    def remove(self, row: Row) -> None:
        del self._by_slot[row.slot]
        self._take_out(row)

    def move(self, row: Row, number: float) -> None:
        self._take_out(row)
        self._insert(row, number)

    def renew(self, number: Callable[[Row], float]) -> None:
        """Everybody's number changed. 0.02 ms for 64 replicas."""
        self._turn = 0.0
        for row in self._rows:
            row.key = number(row) + _TIE * self._random()
        self._rows.sort(key=_key)
        self._keys = [row.key for row in self._rows]

    def least(self, mask: int) -> Row | None:
        """The least busy replica in `mask`, in O(square root of the replicas): of a few each is looked at, for many the
        order is followed until it meets one.
        """
        if not mask & (mask - 1):
            return self._by_slot.get(mask.bit_length() - 1)
        rows, count = self._rows, mask.bit_count()
        if count * count < len(rows):
            return min(self._some(mask), key=_key)
        for row in rows:
            if row.bit & mask:
                return row
        return None

    def first(self, mask: int, count: int) -> list[Row]:
        """Up to `count` of the least busy replicas in `mask`, in order. The same, times the square root of `count`."""
        rows, there = self._rows, mask.bit_count()
        if there * there < count * len(rows):
            return sorted(self._some(mask), key=_key)[:count]
        found = []
        for row in rows:
            if row.bit & mask:
                found.append(row)
                if len(found) in (count, there):
                    break
        return found

    def check_integrity(self, number: Callable[[Row], float]) -> None:
        """Raises AssertionError unless every replica stands once and where it belongs."""
        for row in self._rows:
            added = row.key - number(row)
            assert -_TIE <= added <= self._turn + 2 * _TIE, f"slot {row.slot} is {added} away from its place"
        assert self._keys == sorted(self._keys), "out of order"
        assert self._keys == [row.key for row in self._rows], "keys and replicas are out of step"
        assert sorted(row.slot for row in self._rows) == sorted(self._by_slot), "a replica is missing or twice there"

    def _some(self, mask: int) -> list[Row]:
        by_slot = self._by_slot
        return [by_slot[slot] for slot in slots_of(mask)]

    def _insert(self, row: Row, number: float) -> None:
        keys, rows = self._keys, self._rows
        self._turn += _TIE / (len(rows) + 1)
        row.key = key = number + self._turn + _TIE * self._random()
        at = bisect_left(keys, key)
        keys.insert(at, key)
        rows.insert(at, row)

    def _take_out(self, row: Row) -> None:
        rows = self._rows
        at = bisect_left(self._keys, row.key)
        while rows[at] is not row:  # another with the very same key
            at += 1
        del self._keys[at]
        del rows[at]


def _key(row: Row) -> float:
    return row.key
