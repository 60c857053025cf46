"""What the book of load (load.py) keeps of one request and of one replica."""

import msgspec

TENTATIVE, SENT, RUNNING, OVER = range(4)
"""The states of a lease, in their order: see load.py."""


class Row:
    """What is known of one replica's load, all in one place: a request touches most of it several times. Only the book
    changes it.
    """

    __slots__ = (
        "bit",
        "crowd",
        "filed",
        "foreign",
        "foreign_requests",
        "foreign_until",
        "holds",
        "key",
        "loads",
        "own",
        "recent",
        "requests",
        "slot",
        "weight",
    )

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.bit = 1 << slot
        self.requests = self.own = self.holds = self.crowd = self.loads = 0
        self.foreign_requests = self.foreign = 0
        self.foreign_until: float | None = None
        self.recent = 0.0
        """Work given lately, fading. An average, not a count: nothing is owed back."""
        self.weight = 0
        """own + foreign + crowd."""
        self.key = self.filed = 0.0
        """Its place among the others: see order.py."""


class Lease(msgspec.Struct, eq=False, gc=False):
    request: str
    row: Row
    units: int
    prefill: int
    holds: int
    loads: bool
    until: float
    """When it ends by itself, unless it is RUNNING by then."""
    earlier: "Lease | None" = None
    """An earlier try of the same request that still runs: a replica that rejected it says so late."""
    state: int = TENTATIVE
