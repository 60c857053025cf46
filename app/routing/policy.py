"""What a routing policy is: pure code that ranks replicas and says why.

A policy never raises towards its caller by design, never blocks, has no clock and no random source of its own, and
knows nothing of Ray. `round_robin.py` is the trivial implementation, next to which the others can be judged.
"""

from collections.abc import Sequence
from typing import Annotated, Protocol

import msgspec

from app.routing.load import LoadBook
from app.routing.prompt import Prompt
from app.routing.roster import Roster

Held = tuple[int, int] | None
"""What a replica held of a prompt that was sent there: (pieces, when that was last used, on the policy's own clock)."""
# What an option of a strategy may be: strategies.py checks what files say by these.
Count = Annotated[int, msgspec.Meta(gt=0)]
Amount = Annotated[float, msgspec.Meta(gt=0)]
Weight = Annotated[float, msgspec.Meta(ge=0)]

RANKS = 8
"""How many replicas a ranking names when nothing but load tells them apart."""


class Replica(msgspec.Struct, frozen=True):
    """What is known of one replica, whatever the strategy."""

    id: str
    node: str = ""
    max_ongoing: int = 0
    """How many requests it takes at a time; 0 if unknown."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request to place."""

    id: str
    prompt: Prompt
    session: str | None = None
    """What names the conversation: the session header, else the request's `user`."""
    tokens: Sequence[int] | None = None
    """The prompt as the engine will see it, if somebody tokenised it."""
    trace: str = ""
    """The id that the client sees, if it is not `id`."""


class CacheReport(msgspec.Struct, frozen=True):
    """What the engine says it reused for one response, in tokens. `l0 + l1 + l2 + computed == prompt_tokens`."""

    prompt_tokens: int
    l0: int = 0
    l1: int = 0
    l2: int = 0
    computed: int = 0

    @property
    def hit(self) -> int:
        return self.l0 + self.l1 + self.l2


class Choice(msgspec.Struct, frozen=True, gc=False):
    """One replica's place in a ranking, with the figures it was placed by."""

    replica: str
    reason: str
    """One word: prefix, spread, load, turn, session, bounded, cheapest, ..."""
    score: float = 0.0
    """What was minimised: units of work, or seconds."""
    match: int = 0
    """Prompt tokens expected in L0."""
    l1: int = 0
    l2: int = 0
    load: int = 0
    """Requests of ours in flight there."""
    wait_s: float | None = None
    prefill_s: float | None = None
    load_s: float | None = None


class Ranking(msgspec.Struct, frozen=True, gc=False):
    """The best replicas, best first. Those left out are worth trying only if all of these are full."""

    strategy: str
    choices: tuple[Choice, ...]
    degraded: str | None = None
    """Why this is not the strategy's full judgement, if it is not."""
    prefill_units: int = 0
    """Work that the first choice will have to do for this request: what load counting adds to it."""
    held_units: int = 0
    """The prompt in the same units, as far as its KV takes room of its own until the answer ends: what is hot is in
    flight many times and held once.
    """

    @property
    def best(self) -> Choice | None:
        return self.choices[0] if self.choices else None

    @property
    def reason(self) -> str:
        best = self.best
        return best.reason if best is not None else "nobody"


class Policy(Protocol):
    """Called by one owner (RoutingCore) under its lock, on the event loop: everything here takes microseconds."""

    name: str

    def rank(self, request: Request, candidates: int) -> Ranking:
        """Rank replicas out of the mask `candidates` (a subset of the roster's live ones). Called again for the same
        request when all of a ranking were full, so it must not count requests.
        """

    def on_routed(self, request: Request, slot: int) -> Held:
        """The request was sent to this replica, which will hold its prompt. What is returned is given back once, at
        `on_completed`.
        """

    def on_completed(self, request: Request, slot: int, report: CacheReport | None, held: Held) -> None:
        """A response came back, with what the engine reused if it said so. Without `held`: another replica's, or not
        the first.
        """

    def on_ended(self, request_id: str, slot: int) -> None:
        """The replica no longer works on it, whichever way it ended. Comes even when no report does."""

    def on_checked(self, request: Request, choice: Choice, report: CacheReport) -> None:
        """A report, together with the figures that the replica which served was chosen by."""

    def on_replica_added(self, slot: int, replica: Replica) -> None:
        """A replica that holds nothing."""

    def on_replica_removed(self, slot: int) -> None:
        """The replica died or was replaced: what it held is gone. Its slot is about to be retired."""

    def status(self) -> dict[str, float]:
        """Counters and sizes, for metrics."""

    def check_integrity(self) -> None:
        """Raises AssertionError if the policy's own state is inconsistent."""


def by_load(strategy: str, roster: Roster, load: LoadBook, candidates: int, why: str, work: int = 0) -> Ranking:
    """The fallback of every strategy: least loaded first, ties at random."""
    slots = load.first(candidates, RANKS)
    choices = tuple(Choice(roster.name(one), "load", float(load.units(one)), load=load.requests(one)) for one in slots)
    return Ranking(strategy, choices, why, work)
