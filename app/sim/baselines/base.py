"""What the peers' policies share: hooks that do nothing, and a table of where prompts were sent."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from app.routing.load import LoadBook
from app.routing.policy import CacheReport, Choice, Held, Ranking, Replica, Request
from app.routing.roster import Roster, any_slot, slots_of


class Baseline(ABC):
    """A peer's published rule as a Policy of ours. It sees in-flight requests through the same LoadBook."""

    name: str

    def __init__(
        self,
        roster: Roster,
        load: LoadBook,
        clock: Callable[[], float],
        random: Callable[[], float],
        chunk_tokens: int = 256,
    ) -> None:
        self._roster, self._load, self._clock, self._random = roster, load, clock, random
        self._chunk_tokens = chunk_tokens
        self.prepare()

    def prepare(self) -> None:  # noqa: B027 - a rule without state
        """Make what the rule keeps; called once, when it is made."""

    @abstractmethod
    def pick(self, request: Request, candidates: int) -> int:
        """The slot to send to, out of a mask that is not empty."""

    def rank(self, request: Request, candidates: int) -> Ranking:
        if not candidates:
            return Ranking(self.name, ())
        slot = self.pick(request, candidates)
        choice = Choice(self._roster.name(slot), "baseline", load=self._load.requests(slot))
        return Ranking(self.name, (choice,), prefill_units=len(request.prompt.pieces))

    def on_routed(self, request: Request, slot: int) -> None: ...  # noqa: B027
    def on_completed(self, request: Request, slot: int, report: CacheReport | None, held: Held) -> None: ...  # noqa: B027
    def on_ended(self, request_id: str, slot: int) -> None: ...  # noqa: B027
    def on_checked(self, request: Request, choice: Choice, report: CacheReport) -> None: ...  # noqa: B027
    def on_replica_added(self, slot: int, replica: Replica) -> None: ...  # noqa: B027
    def on_replica_removed(self, slot: int) -> None: ...  # noqa: B027

    def status(self) -> dict[str, float]:
        return {}

    def check_integrity(self) -> None: ...  # noqa: B027 - a rule without state

    # --- for the rules ----------------------------------------------------------------------------------------------

    def loads(self, candidates: int) -> dict[int, int]:
        """Requests in flight per candidate."""
        return {slot: self._load.requests(slot) for slot in slots_of(candidates)}

    def least(self, candidates: int) -> int:
        """The fewest requests in flight, ties at random."""
        loads = self.loads(candidates)
        fewest = min(loads.values())
        return any_slot(sum(1 << slot for slot, load in loads.items() if load == fewest), self._random)

    def two(self, candidates: int) -> int:
        """The less busy of two at random: the power of two choices."""
        one = any_slot(candidates, self._random)
        rest = candidates ^ (1 << one)
        if not rest:
            return one
        other = any_slot(rest, self._random)
        return other if self._load.requests(other) < self._load.requests(one) else one


class Routes:
    """Where each piece of prompt was sent. It never forgets what was evicted, as the peers' own trees do not."""

    def __init__(self, roster: Roster) -> None:
        self._holders: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        """Pieces per slot."""
        roster.on_reclaim(self._clean)

    def longest(self, pieces: Sequence[int], candidates: int) -> tuple[int, int]:
        """The longest match in pieces, and the mask of those that have it; (0, candidates) if nobody has any."""
        alive, at = candidates, 0
        for piece in pieces:
            still = alive & self._holders.get(piece, 0)
            if not still:
                break
            alive, at = still, at + 1
        return at, alive

    def matches(self, pieces: Sequence[int], candidates: int) -> dict[int, int]:
        """For each candidate that has a beginning, how many pieces of it."""
        found: dict[int, int] = {}
        alive = candidates
        for at, piece in enumerate([*pieces, 0]):
            still = alive & self._holders.get(piece, 0)
            if still != alive:
                if at:
                    found.update(dict.fromkeys(slots_of(alive ^ still), at))
                alive = still
                if not alive:
                    break
        return found

    def insert(self, pieces: Sequence[int], slot: int) -> None:
        bit, holders, new = 1 << slot, self._holders, 0
        for piece in pieces:
            mask = holders.get(piece, 0)
            if not mask & bit:
                holders[piece] = mask | bit
                new += 1
        self.sizes[slot] = self.sizes.get(slot, 0) + new

    def forget(self, piece: int, slot: int) -> None:
        mask = self._holders.get(piece, 0) & ~(1 << slot)
        if mask:
            self._holders[piece] = mask
        else:
            self._holders.pop(piece, None)
        self.sizes[slot] = max(0, self.sizes.get(slot, 0) - 1)

    def drop(self, slot: int) -> None:
        """The replica is gone: its bits mean nothing until they are cleaned away."""
        self.sizes.pop(slot, None)

    def _clean(self, dead: int) -> None:
        self._holders = {piece: mask & ~dead for piece, mask in self._holders.items() if mask & ~dead}


class Routing(Baseline):
    """A rule that remembers where it sent what."""

    def prepare(self) -> None:
        self.routes = Routes(self._roster)

    def on_routed(self, request: Request, slot: int) -> None:
        self.routes.insert(request.prompt.pieces, slot)

    def on_replica_removed(self, slot: int) -> None:
        self.routes.drop(slot)

    def check_integrity(self) -> None:
        for slot in self.routes.sizes:
            assert self._roster.live >> slot & 1, f"routes are counted for slot {slot}, which is not live"
