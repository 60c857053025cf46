"""What the book of load (load.py) keeps of one request and of one replica."""

import math

import msgspec

RECENT_S = 60.0
"""Half-life of `recent`: about the pause between a conversation's turns, which is what it anticipates."""


class Lease(msgspec.Struct, eq=False, gc=False):
    request: str
    slot: int
    units: int
    prefill: int
    holds: int
    loads: bool = False
    running: bool = False


class Row:
    """What is known of one replica's load, all in one place: a request touches most of it several times."""

    __slots__ = (
        "crowd",
        "foreign",
        "foreign_requests",
        "foreign_until",
        "holds",
        "klass",
        "loads",
        "own",
        "recent",
        "recent_at",
        "requests",
    )

    def __init__(self) -> None:
        self.requests = self.own = self.holds = self.crowd = self.loads = 0
        self.foreign_requests = self.foreign = 0
        self.foreign_until: float | None = None
        # Work given lately, as of `recent_at`, halved every RECENT_S. An average, not a count: nothing is owed back.
        self.recent = self.recent_at = 0.0
        self.klass = 0

    def weight(self) -> int:
        return self.own + self.foreign + self.crowd

    def recently(self, now: float) -> float:
        return self.recent * math.exp2((self.recent_at - now) / RECENT_S)
