"""Turn after turn, blind to caches: the baseline that the other strategies must beat."""

from collections.abc import Callable

from app.routing.load import LoadBook
from app.routing.policy import RANKS, CacheReport, Choice, Held, Ranking, Replica, Request
from app.routing.roster import Roster, slots_of


class RoundRobin:
    """The k-th request goes to the k-th replica. Several ingress replicas share nothing; each starts at a random
    turn.
    """

    name = "round_robin"

    def __init__(self, roster: Roster, load: LoadBook, random: Callable[[], float]) -> None:
        self._roster = roster
        self._load = load
        self._random = random
        self._last: int | None = None

    def rank(self, request: Request, candidates: int) -> Ranking:
        """O(ranks): the mask is rotated so that it starts after the last slot served."""
        if not candidates:
            return Ranking(self.name, ())
        width = candidates.bit_length()
        if self._last is None:
            self._last = int(self._random() * width)
        start = self._last + 1
        above = (candidates >> start) << start
        choices: list[Choice] = []
        for part in (above, candidates ^ above):
            for slot in slots_of(part):
                choices.append(
                    Choice(self._roster.name(slot), "turn", float(len(choices)), load=self._load.requests(slot))
                )
                if len(choices) == RANKS:
                    break
            if len(choices) == RANKS:
                break
        first = above or candidates
        self._last = (first & -first).bit_length() - 1
        return Ranking(self.name, tuple(choices), prefill_units=len(request.prompt.pieces))

    def on_routed(self, request: Request, slot: int) -> None: ...
    def on_completed(self, request: Request, slot: int, report: CacheReport | None, held: Held) -> None: ...
    def on_ended(self, request_id: str, slot: int) -> None: ...
    def on_checked(self, request: Request, choice: Choice, report: CacheReport) -> None: ...
    def on_replica_added(self, slot: int, replica: Replica) -> None: ...
    def on_replica_removed(self, slot: int) -> None: ...

    def status(self) -> dict[str, float]:
        return {}

    def check_integrity(self) -> None:
        assert self._last is None or self._last >= 0
