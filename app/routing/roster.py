"""Which replicas there are: each has a small number (its slot), so that a set of replicas is one int used as a bit
mask.

Masks are what makes a fleet of a thousand cost what a fleet of sixty costs: intersecting two sets of 1,024 replicas is
one 128-byte AND (about 40 ns), where sets or dictionaries of names cost a step per replica.
"""

from collections.abc import Callable, Iterable, Iterator


class Roster:
    """Replica id <-> slot. Not thread safe: one owner (RoutingCore) calls it under its lock.

    A slot goes free -> live -> retired -> free. A retired slot is not given out again before `reclaim`, because
    structures that keep masks (PrefixTree, KvIndex) clean them lazily; until then its bit must mean nothing, never
    another replica.
    """

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        """Slot by name, for whoever asks often; only the roster changes it."""
        self.names: list[str] = []
        """Name by slot, the same; empty where there is none."""
        self._free: list[int] = []
        self._cleaners: list[Callable[[int], None]] = []
        self.live = 0
        """Mask of the slots in use."""
        self.retired = 0
        """Mask of the slots whose replica has gone and whose bits may still lie in someone's masks."""

    def __len__(self) -> int:
        return len(self.slots)

    def __contains__(self, replica: str) -> bool:
        return replica in self.slots

    def add(self, replica: str) -> int:
        """The replica's slot, new or known."""
        slot = self.slots.get(replica)
        if slot is not None:
            return slot
        if self._free:
            slot = self._free.pop()
            self.names[slot] = replica
        else:
            slot = len(self.names)
            self.names.append(replica)
        self.slots[replica] = slot
        self.live |= 1 << slot
        return slot

    def remove(self, replica: str) -> int | None:
        """Retire the replica's slot and return it; None if it was unknown."""
        slot = self.slots.pop(replica, None)
        if slot is None:
            return None
        self.names[slot] = ""
        self.live &= ~(1 << slot)
        self.retired |= 1 << slot
        # Cleaning costs a pass over every mask (about 10 ms for 100,000 nodes), so it is done once per many departures.
        if self.retired.bit_count() >= max(64, len(self.slots)):
            self.reclaim()
        return slot

    def slot(self, replica: str) -> int | None:
        return self.slots.get(replica)

    def name(self, slot: int) -> str:
        name = self.names[slot]
        assert name, f"slot {slot} has no replica"
        return name

    def mask(self, replicas: Iterable[str]) -> int:
        """The mask of those replicas that are known."""
        found = 0
        for replica in replicas:
            slot = self.slots.get(replica)
            if slot is not None:
                found |= 1 << slot
        return found

    def on_reclaim(self, clean: Callable[[int], None]) -> None:
        """Register a keeper of masks: `clean(dead)` must clear those bits everywhere it keeps them."""
        self._cleaners.append(clean)

    def reclaim(self) -> None:
        """Have every keeper forget the retired slots, then make them free."""
        dead = self.retired
        for clean in self._cleaners:
            clean(dead)
        self._free.extend(slots_of(dead))
        self.retired = 0

    def check_integrity(self) -> None:
        """Raises AssertionError if names, slots and masks disagree."""
        for replica, slot in self.slots.items():
            assert self.names[slot] == replica, f"slot {slot} is {self.names[slot]!r}, not {replica!r}"
        expected = sum(1 << slot for slot in self.slots.values())
        assert self.live == expected, f"live {self.live:b} but slots say {expected:b}"
        assert not self.live & self.retired, "a slot is live and retired"
        free = sum(1 << slot for slot in self._free)
        assert not free & (self.live | self.retired), "a slot is free and used"
        assert (free | self.live | self.retired) == (1 << len(self.names)) - 1, "a slot is lost"


_FEW = 16


def slots_of(mask: int) -> Iterator[int]:
    """The slots in a mask, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def any_slot(mask: int, random: Callable[[], float]) -> int:
    """One slot of a mask that is not empty, each as likely. Guessing is quicker than counting where slots are dense."""
    width, count = mask.bit_length(), mask.bit_count()
    if count == 1:
        return width - 1
    if 4 * count >= width:
        while True:
            slot = int(random() * width)
            if mask >> slot & 1:
                return slot
    return nth_slot(mask, int(random() * count))


def nth_slot(mask: int, n: int) -> int:
    """The n-th slot of a mask, counted from zero. Needs n < mask.bit_count().

    Lowest first where n is small, else by halving, so that 1,024 slots take ten steps.
    """
    if n < _FEW:
        for _ in range(n):
            mask &= mask - 1
        return (mask & -mask).bit_length() - 1
    base, width = 0, 1 << max(0, (mask.bit_length() - 1)).bit_length()
    while width > 1:
        width >>= 1
        low = mask & ((1 << width) - 1)
        count = low.bit_count()
        if n < count:
            mask = low
        else:
            n -= count
            mask >>= width
            base += width
    return base
