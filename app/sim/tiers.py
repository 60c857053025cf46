"""L1 of a node and the shared L2: what they hold, at the granularity of the workload's blocks."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from app.tiers.curvine.ledger import Ledger
from app.tiers.curvine.retainer import Retainer
from app.tiers.curvine.retention import Score

L1_TRIGGER, L1_EVICT = 0.8, 0.2
"""LMCache's default eviction watermark and ratio."""
L2_HIGH, L2_LOW = 0.95, 0.85
"""The janitor's watermarks, as `tierserve bench retention` has them."""
_FAMILY = "sim"


class NodeCache:
    """LMCache's L1 with its LRU eviction: at `L1_TRIGGER` of its room the oldest `L1_EVICT` of what it holds go.

    A prompt's blocks are touched last to first, so that of one prompt the end is older than the beginning. `retainer`
    is the production rule for what stays of a load from L2.
    """

    def __init__(self, blocks: int) -> None:
        self.room = blocks
        self.retainer = Retainer()
        self._held: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, name: int) -> bool:
        return name in self._held

    def __len__(self) -> int:
        return len(self._held)

    def touch(self, names: Sequence[int]) -> None:
        for name in reversed(names):
            if name in self._held:
                self._held.move_to_end(name)

    def store(self, names: Sequence[int]) -> tuple[list[int], list[int]]:
        """Put these in. Returns what is new and what had to go."""
        new = [name for name in names if name not in self._held]
        for name in reversed(names):
            self._held[name] = None
            self._held.move_to_end(name)
        return new, [self._held.popitem(last=False)[0] for _ in range(self._surplus())]

    def _surplus(self) -> int:
        """A fifth of what is held once the trigger is passed, or more if one prompt alone passes it by more."""
        over = len(self._held) - int(L1_TRIGGER * self.room)
        return max(over, int(L1_EVICT * len(self._held))) if over > 0 else 0

    def check_integrity(self) -> None:
        assert len(self._held) <= max(0, L1_TRIGGER * self.room), f"{len(self._held)} blocks in room for {self.room}"


class SharedPool:
    """L2: the janitor's own ledger and score decide what stays; only the files are not there."""

    def __init__(self, blocks: int) -> None:
        self.room = blocks
        self._ledger = Ledger(Score())

    def __contains__(self, name: int) -> bool:
        return f"{_FAMILY}/{name}" in self._ledger

    def __len__(self) -> int:
        return len(self._ledger)

    def used(self, names: Iterable[int], now: float) -> None:
        for name in names:
            self._ledger.used(f"{_FAMILY}/{name}", 1, now)

    def store(self, first: int, names: Sequence[int], now: float) -> tuple[list[int], list[int]]:
        """Store blocks `first`, `first + 1`, ... of a prompt. Returns what is new and what had to go."""
        ledger = self._ledger
        new = [name for name in names if name not in self]
        for at, name in enumerate(names):
            ledger.stored(_FAMILY, str(name), 1, first + at, now)
        gone: list[int] = []
        if ledger.bytes > L2_HIGH * self.room:
            for entry in ledger.victims(ledger.bytes - int(L2_LOW * self.room), now):
                ledger.gone(entry.name)
                gone.append(int(entry.digest))
        return new, gone

    def check_integrity(self) -> None:
        self._ledger.check_integrity()
        assert len(self._ledger) <= self.room, f"{len(self._ledger)} blocks in room for {self.room}"
