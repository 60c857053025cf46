"""What is remembered of each request: for its report, for the debug header, and for a retry."""

from collections import OrderedDict

import msgspec

from app.routing.policy import Held, Ranking, Request

_MOST = 20_000
_MOST_PIECES = 1_000_000
"""Requests kept, at most so many and of so many pieces together (about 40 MB)."""


class Record(msgspec.Struct, eq=False, gc=False):
    request: Request
    ranking: Ranking
    """The last one made for it."""
    weight: int
    """In pieces."""
    replica: str | None = None
    """Where it was sent."""
    held: Held = None


class Records:
    """Bounded, the oldest leave first. Not thread safe: RoutingCore calls it under its lock."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._traces: dict[str, str] = {}
        self._pieces = 0
        self.get = self._records.get
        """By internal id."""

    def find(self, request_id: str) -> Record | None:
        """By internal or trace id."""
        return self.get(self._traces.get(request_id, request_id))

    def add(self, request: Request, ranking: Ranking) -> None:
        """Replaces what was remembered of the same request."""
        records = self._records
        if request.id in records:
            self._forget(request.id)
        weight = request.prompt.work
        if request.tokens is not None:
            # A piece is a Python integer of 36 bytes, nine token ids of an array weigh as much.
            weight += len(request.tokens) // 9
        records[request.id] = Record(request, ranking, weight)
        self._pieces += weight
        if request.trace:
            self._traces[request.trace] = request.id
        while len(records) > _MOST or (self._pieces > _MOST_PIECES and len(records) > 1):
            self._forget(next(iter(records)))

    def check_integrity(self) -> None:
        """Raises AssertionError if sums or names are stale."""
        weight = sum(record.weight for record in self._records.values())
        assert self._pieces == weight, f"{self._pieces} pieces counted, {weight} kept"
        assert all(name in self._records for name in self._traces.values()), "a trace outlived its record"

    def _forget(self, request_id: str) -> None:
        record = self._records.pop(request_id)
        self._pieces -= record.weight
        if self._traces.get(record.request.trace) == request_id:
            del self._traces[record.request.trace]
