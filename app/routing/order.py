"""Replicas by how busy they are, kept up change by change, so that no question looks at all of them."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter

from app.routing.load_row import Row
from app.routing.roster import slots_of

_TIE = 1e-6
"""What ties are broken by: up to so much is added at random, and as much more whenever everybody could have changed
four times, so that nobody is last for long. Nothing that counts is as small.
"""
_LOOKS = 8
"""A step along the order costs as much as to look at so many."""
_by_key = attrgetter("key")


class Order:
    """A heap of (key, slot) that is corrected when it is asked, and not before.

    `Row.key` is how busy a replica is now, `Row.filed` the key that it has in the heap, which is never above. So a
    replica that gets busier costs nothing until it is on top, and one that gets less busy is pushed once more; what
    it was filed under before means nothing from then on. Among 64 a change costs 0.2 to 0.3 us.

    Not thread safe: its owner is the book of load. Masks are of replicas that are there.
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._rows: dict[int, Row] = {}
        self._heap: list[tuple[float, int]] = []
        self._turn = 0.0

    def add(self, row: Row) -> None:
        """A replica that is not busy at all."""
        self._rows[row.slot] = row
        row.key = row.filed = self._turn + _TIE * self._random()
        heappush(self._heap, (row.key, row.slot))

    def remove(self, row: Row) -> None:
        """O(replicas)."""
        del self._rows[row.slot]
        self._rebuild()

    def move(self, row: Row, number: float) -> None:
        """The replica is so busy now."""
        self._turn += _TIE / (4 * len(self._rows))
        row.key = key = number + self._turn + _TIE * self._random()
        if key < row.filed:
            row.filed = key
            heappush(self._heap, (key, row.slot))
            if len(self._heap) > 4 * len(self._rows):
                self._rebuild()

    def renew(self, number: Callable[[Row], float]) -> None:
        """Everybody has changed. 0.015 ms for 64 replicas."""
        self._turn = 0.0
        for row in self._rows.values():
            row.key = number(row) + _TIE * self._random()
        self._rebuild()

    def least(self, mask: int) -> Row | None:
        """The least busy replica in `mask`. O(square root of the replicas): of a few each is looked at; of many, those
        in order until one of them comes.
        """
        rows = self._rows
        there = mask.bit_count()
        if there <= 1:
            return rows.get(mask.bit_length() - 1)
        if there * there < _LOOKS * len(rows):
            return self._lowest(mask)
        top = self._top()
        return top if top.bit & mask else self.first(mask, 1)[0]

    def first(self, mask: int, count: int) -> list[Row]:
        """Up to `count` of the least busy replicas in `mask`, in order. The same, times the square root of `count`; and
        never much more than looking at each, as where those in `mask` are busier than all others.
        """
        there = mask.bit_count()
        if not there:
            return []
        if there * there < _LOOKS * count * len(self._rows):
            return self._looked_at(mask, count)
        found: list[Row] = []
        taken: list[tuple[float, int]] = []
        while mask and len(found) < count:
            if len(taken) > there // _LOOKS:
                found += self._looked_at(mask, count - len(found))
                break
            row = self._top()
            taken.append(heappop(self._heap))
            if row.bit & mask:
                mask ^= row.bit
                found.append(row)
        for entry in taken:
            heappush(self._heap, entry)
        return found

    def _lowest(self, mask: int) -> Row:
        """Looks at each replica in `mask`, of which there must be one."""
        rows = self._rows
        found = rows[mask.bit_length() - 1]
        while mask:
            row = rows[mask.bit_length() - 1]
            mask ^= row.bit
            if row.key < found.key:
                found = row
        return found

    def _looked_at(self, mask: int, count: int) -> list[Row]:
        """Looks at each replica in `mask`, of which there must be one if `count` is not zero."""
        if count == 1:
            return [self._lowest(mask)]
        return sorted((self._rows[slot] for slot in slots_of(mask)), key=_by_key)[:count]

    def check_integrity(self, number: Callable[[Row], float]) -> None:
        """Raises AssertionError unless every replica is as busy as `number` says, and found where it is filed."""
        entries = set(self._heap)
        for slot, row in self._rows.items():
            added = row.key - number(row)
            assert -_TIE <= added <= self._turn + 2 * _TIE, f"slot {slot} is {added} away from its place"
            assert row.filed <= row.key, f"slot {slot} is filed under {row.filed}, above {row.key}"
            assert (row.filed, slot) in entries, f"slot {slot} is missing"
        assert len(self._heap) <= 4 * len(self._rows), f"{len(self._heap)} entries for {len(self._rows)} replicas"

    def _top(self) -> Row:
        """The least busy of those in the heap, of which there must be one."""
        heap, rows = self._heap, self._rows
        while True:
            key, slot = heap[0]
            row = rows[slot]
            if key == row.key:
                return row
            if key == row.filed:
                row.filed = row.key
                heapreplace(heap, (row.key, slot))
            else:
                heappop(heap)  # filed anew since

    def _rebuild(self) -> None:
        for row in self._rows.values():
            row.filed = row.key
        self._heap = [(row.key, slot) for slot, row in self._rows.items()]
        heapify(self._heap)
