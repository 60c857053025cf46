"""Consistent hashing with bounded load: a conversation stays on its replica, unless that replica has more than its
share.

A replica is accepted if its requests in flight stay within `balance * average + slack`, else the next one on the
ring is asked (Mirrokni et al., 2016). A session so displaced returns home as soon as there is room. Nothing is
learned, so several ingress replicas agree without sharing anything: the ring depends on replica ids alone.
"""

import math
from bisect import bisect_left, insort
from typing import Annotated

import msgspec
import xxhash

from app.routing.load import LoadBook
from app.routing.policy import RANKS, CacheReport, Choice, Count, Held, Ranking, Replica, Request, by_load
from app.routing.roster import Roster


class Session:
    """O(log ring + replicas passed over). Without a session key a request goes by load."""

    name = "session"

    def __init__(
        self,
        roster: Roster,
        load: LoadBook,
        *,
        points: Count = 64,
        balance: Annotated[float, msgspec.Meta(ge=1)] = 1.25,
        slack: Annotated[int, msgspec.Meta(ge=0)] = 2,
    ) -> None:
        self._roster = roster
        self._load = load
        self._points = points
        self._balance = balance
        self._slack = slack
        self._ring: list[tuple[int, int]] = []
        self._names: dict[int, str] = {}
        self._keyless = 0

    def rank(self, request: Request, candidates: int) -> Ranking:
        work = len(request.prompt.pieces)
        if not candidates:
            return Ranking(self.name, ())
        if not request.session:
            self._keyless += 1
            return by_load(self.name, self._roster, self._load, candidates, "no session key", work)
        bound = math.ceil(self._balance * (self._load.total_requests + 1) / candidates.bit_count()) + self._slack
        within: list[int] = []
        over: list[int] = []
        home: int | None = None
        for slot in self._walk(f"{request.prompt.salt}\0{request.session}", candidates):
            home = slot if home is None else home
            (within if self._load.requests(slot) < bound else over).append(slot)
            if len(within) == RANKS:
                break
        order = [*within, *over][:RANKS]
        choices = tuple(
            Choice(
                self._roster.name(slot),
                "session" if slot == home else "bounded",
                float(place),
                load=self._load.requests(slot),
            )
            for place, slot in enumerate(order)
        )
        return Ranking(self.name, choices, prefill_units=work)

    def on_routed(self, request: Request, slot: int) -> None: ...
    def on_completed(self, request: Request, slot: int, report: CacheReport | None, held: Held) -> None: ...
    def on_ended(self, request_id: str, slot: int) -> None: ...
    def on_checked(self, request: Request, choice: Choice, report: CacheReport) -> None: ...

    def on_replica_added(self, slot: int, replica: Replica) -> None:
        if slot in self._names:
            return
        name = self._names[slot] = self._roster.name(slot)
        for point in range(self._points):
            insort(self._ring, (xxhash.xxh3_64_intdigest(f"{name}\0{point}".encode()), slot))

    def on_replica_removed(self, slot: int) -> None:
        if self._names.pop(slot, None) is not None:
            self._ring = [entry for entry in self._ring if entry[1] != slot]

    def status(self) -> dict[str, float]:
        return {"keyless": float(self._keyless)}

    def check_integrity(self) -> None:
        assert self._ring == sorted(self._ring), "the ring is not sorted"
        assert len(self._ring) == self._points * len(self._names), "the ring has points of a replica that is gone"
        for slot, name in self._names.items():
            assert self._roster.slot(name) == slot, f"{name} moved to another slot"

    def _walk(self, key: str, candidates: int) -> "_Walk":
        return _Walk(
            self._ring,
            bisect_left(self._ring, (xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass")), 0)),
            candidates,
        )


class _Walk:
    """Distinct candidates clockwise from a point of the ring."""

    def __init__(self, ring: list[tuple[int, int]], start: int, candidates: int) -> None:
        self._ring, self._at, self._left, self._steps = ring, start, candidates, len(ring)

    def __iter__(self) -> "_Walk":
        return self

    def __next__(self) -> int:
        while self._left and self._steps:
            self._steps -= 1
            slot = self._ring[self._at % len(self._ring)][1]
            self._at += 1
            if self._left >> slot & 1:
                self._left ^= 1 << slot
                return slot
        raise StopIteration
