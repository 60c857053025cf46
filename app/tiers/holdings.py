"""What one cache server's tier holds, kept as numbered messages for whoever follows it. Pure.

A chunk counts as held while all of its parts are, as far as is known: it is announced with the first part that is
stored (ranks of one engine store theirs within milliseconds) and withdrawn with the first that goes.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from uuid import uuid4

from app.tier_events import Removed, Scope, Stored, Tier, TierMessage

MOST = 1_000_000
"""Chunks remembered: beyond, new ones are not announced, which costs hits of routing and nothing else."""

Held = tuple[Scope, bytes]


class Holdings:
    """One tier. Not thread safe: one owner calls it under its lock. Nothing blocks or raises."""

    def __init__(self, tier: Tier, *, clock: Callable[[], float] = time.time, most: int = MOST) -> None:
        self.tier = tier
        self.incarnation = uuid4().hex
        self._clock = clock
        self._most = most
        self._held: dict[Scope, set[bytes]] = {}
        self._seq = 0
        self.chunks = 0
        self.refused = 0

    def store(self, keys: Iterable[Held]) -> TierMessage | None:
        """The message to publish; None if nothing is new."""
        new: dict[Scope, list[bytes]] = {}
        for scope, chunk in keys:
            held = self._held.setdefault(scope, set())
            if chunk in held:
                continue
            if self.chunks >= self._most:
                self.refused += 1
                continue
            held.add(chunk)
            self.chunks += 1
            new.setdefault(scope, []).append(chunk)
        return self._next([Stored(scope, chunks) for scope, chunks in new.items()])

    def remove(self, keys: Iterable[Held]) -> TierMessage | None:
        gone: dict[Scope, list[bytes]] = {}
        for scope, chunk in keys:
            held = self._held.get(scope)
            if held is None or chunk not in held:
                continue
            held.remove(chunk)
            self.chunks -= 1
            gone.setdefault(scope, []).append(chunk)
            if not held:
                del self._held[scope]
        return self._next([Removed(scope, chunks) for scope, chunks in gone.items()])

    def forget(self) -> TierMessage:
        """What is held is no longer known (notices were lost): followers start from nothing."""
        self._held.clear()
        self.chunks = 0
        self._seq += 1
        return self._message([], snapshot=True)

    def alive(self) -> TierMessage:
        """Says only that the server lives, and how far its messages have come."""
        return self._message([], snapshot=False)

    def snapshot(self) -> TierMessage:
        """Everything, as of the last message."""
        return self._message([Stored(scope, list(chunks)) for scope, chunks in self._held.items()], snapshot=True)

    def __iter__(self) -> Iterator[Held]:
        return ((scope, chunk) for scope, chunks in self._held.items() for chunk in chunks)

    def check_integrity(self) -> None:
        """Raises AssertionError if the count is not the sum, or an empty scope is kept."""
        total = sum(map(len, self._held.values()))
        assert self.chunks == total <= self._most, f"{self.chunks} chunks counted, {total} held"

    def _next(self, events: list[Stored | Removed]) -> TierMessage | None:
        if not events:
            return None
        self._seq += 1
        return self._message(events, snapshot=False)

    def _message(self, events: list[Stored | Removed], *, snapshot: bool) -> TierMessage:
        return TierMessage(self.tier, self.incarnation, self._seq, self._clock(), snapshot, events)
