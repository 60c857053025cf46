"""Prompts in flight: which replica is about to hold which prefix, before its events say so.

A prompt is a chain of piece names (kv_keys.py), so who agrees with a prompt up to a piece is one look at one mask, as
in EngineIndex. Prompts in flight on one replica often share their beginning: a mask says that a replica has a piece,
`_more` how many times beyond the first.
"""

from collections import OrderedDict
from collections.abc import Sequence

_PER_REPLICA = 256
"""Prompts remembered per replica, the newest: one whose end we never hear of leaves this way."""
_NOBODY: OrderedDict[str, Sequence[int]] = OrderedDict()


class Flights:
    """Not thread safe: one owner calls it under its lock. Unknown requests and replicas are no-ops.

    Starting and landing cost O(pieces of the prompt), asking O(pieces of the longest agreement): nothing depends on the
    number of replicas.
    """

    def __init__(self) -> None:
        self._flights: dict[int, OrderedDict[str, Sequence[int]]] = {}
        self._holders: dict[int, int] = {}
        self._more: dict[tuple[int, int], int] = {}

    def __bool__(self) -> bool:
        return bool(self._holders)

    def start(self, slot: int, request: str, names: Sequence[int]) -> None:
        """The request was sent there. Sent again, it counts once."""
        self.land(slot, request)
        flights = self._flights.setdefault(slot, OrderedDict())
        flights[request] = names
        holders, more, bit = self._holders, self._more, 1 << slot
        for name in names:
            mask = holders.get(name, 0)
            if mask & bit:
                more[name, slot] = more.get((name, slot), 0) + 1
            else:
                holders[name] = mask | bit
        if len(flights) > _PER_REPLICA:
            self.land(slot, next(iter(flights)))

    def land(self, slot: int, request: str) -> None:
        """It ended, whichever way."""
        names = self._flights.get(slot, _NOBODY).pop(request, None)
        if names is None:
            return
        holders, more, bit = self._holders, self._more, 1 << slot
        for name in names:
            again = more.get((name, slot))
            if again is None:
                left = holders[name] ^ bit
                if left:
                    holders[name] = left
                else:
                    del holders[name]
            elif again > 1:
                more[name, slot] = again - 1
            else:
                del more[name, slot]

    def drop(self, slot: int) -> None:
        """The replica is gone."""
        for request in list(self._flights.get(slot, ())):
            self.land(slot, request)
        self._flights.pop(slot, None)

    def runs(self, names: Sequence[int], candidates: int) -> list[tuple[int, int]]:
        """(pieces, replicas that have so many of these in flight and not the next), the fewest first."""
        found: list[tuple[int, int]] = []
        holders, alive = self._holders, candidates
        for at, name in enumerate(names):
            still = alive & holders.get(name, 0)
            if still != alive:
                if at:
                    found.append((at, alive ^ still))
                alive = still
                if not alive:
                    return found
        if names and alive:
            found.append((len(names), alive))
        return found

    @property
    def slots(self) -> list[int]:
        """Replicas that something is kept for."""
        return [*self._flights]

    def check_integrity(self) -> None:
        """Raises AssertionError unless masks and counts say what the flights are."""
        count: dict[tuple[int, int], int] = {}
        for slot, flights in self._flights.items():
            for names in flights.values():
                for name in names:
                    count[name, slot] = count.get((name, slot), 0) + 1
        masks: dict[int, int] = {}
        for name, slot in count:
            masks[name] = masks.get(name, 0) | 1 << slot
        assert masks == self._holders, "masks and flights disagree"
        assert {key: seen - 1 for key, seen in count.items() if seen > 1} == self._more, "counts and flights disagree"
