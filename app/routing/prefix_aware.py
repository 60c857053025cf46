"""Send a prompt where its beginning was sent before, unless that replica is too busy for it to be worth it.

One score, in pieces of prompt to compute (about 64 tokens each); the smallest wins:

    score(r) = new + sum over known steps that r lacks of  length(step) * discount(step)
                   + load_weight * load(r) + recent_weight * recent(r)

    new            pieces nobody has seen: the same everywhere
    load(r)        pieces in flight on r that are not computed yet, plus a constant per running request, plus crowding
                   (LoadBook.weight). It weighs less than one: what is in flight is partly done, and moving away has
                   a price that later requests pay
    recent(r)      what r was given lately, done or not: decides between idle replicas, as conversations come back
    discount(step) min(1, h0 / h),  h = recent uses of the step / replicas that hold it,
                   h0 = shared_uses (1) of a step that several prompts share, hot_uses (8) of one prompt's own

So affinity ends where waiting costs more than computing: no gate, no cliff. The discount is what spreads a hot
prefix. Computing it once more is an investment that later requests share, so the more traffic each holder has (h),
the less a new holder is charged. What comes below the last fork is this conversation's alone: of it only one holder
has any use at a time, so it is charged in full, unless it is asked again and again.
"""

import math
from collections.abc import Callable
from operator import attrgetter

from app.routing.load import LoadBook
from app.routing.load_row import Row
from app.routing.policy import Amount, CacheReport, Choice, Count, Held, Ranking, Replica, Request, Weight
from app.routing.prefix_tree import Level, PrefixTree
from app.routing.prompt import PIECE_BYTES
from app.routing.roster import Roster, slots_of
from app.routing.selfcheck import SelfCheck

LOAD_WEIGHT = 0.3
RECENT_WEIGHT = 0.01
"""Chosen by simulating 12 to 60 conversations of 5 turns on 3 to 8 replicas: between 0.2 and 0.3 time to first token
hardly changes, at 1.0 it is 30 % worse, because a conversation that is moved is computed once more and later turns
pay for it.
"""
_by_score = attrgetter("score")
_NOTHING = Level(0, -1, 0.0, 1 << 62, True)
"""The step before the first, which every replica holds."""


class PrefixAware:
    """See the module's text. O(steps of the match), nearly independent of the number of replicas and of the prompt's
    length.

    The best score is found without scoring everybody. Replicas that hold a prompt down to the same step differ in load
    only, so the least busy of them is the best of them, and the book of load knows it. A ranking is these: one for each
    step, and one of those that hold nothing. A second of a step would be busier still where the first is full.
    """

    name = "prefix_aware"

    def __init__(
        self,
        roster: Roster,
        load: LoadBook,
        clock: Callable[[], float],
        *,
        max_bytes: Count = 64 << 20,
        half_life_s: Amount = 60.0,
        hot_uses: Amount = 8.0,
        shared_uses: Amount = 1.0,
        load_weight: Weight = LOAD_WEIGHT,
        recent_weight: Weight = RECENT_WEIGHT,
    ) -> None:
        self.tree = PrefixTree(roster, max_bytes, half_life_s)
        self._roster = roster
        self._load = load
        # The book orders replicas as the score does; if load weighs nothing, nearly so.
        load.recent_share = recent_weight / (load_weight or 1e-6)
        self._clock = clock
        self._hot_uses = hot_uses
        self._shared_uses = shared_uses
        self._load_weight = load_weight
        self._recent_weight = recent_weight
        self._bytes_per_token = 4.0
        # Per replica, the tick up to which unused prefixes are known to have left its cache.
        self._horizon: dict[int, int] = {}
        self._corrections = 0
        self.check = SelfCheck()

    def rank(self, request: Request, candidates: int) -> Ranking:
        prompt, load, horizon = request.prompt, self._load, self._horizon
        pieces, weight, recent = prompt.pieces, self._load_weight, self._recent_weight
        names, tokens = self._roster.names, PIECE_BYTES / self._bytes_per_token
        steps = [_NOTHING, *self.tree.match(pieces, self._clock())]
        last = len(steps) - 1
        lacking, left = float(len(pieces) - steps[last].depth), candidates
        choices: list[Choice] = []
        best, known, shared = math.inf, 0, False
        for at in range(last, -1, -1):
            level = steps[at]
            depth, here = level.depth, level.holders & left
            row, stale = load.least(here), 0
            if horizon and row is not None:
                row, stale = self._fresh(row, here, level.last_use)
            left ^= here ^ stale
            if row is not None:
                score = lacking + weight * row.weight + recent * row.recent
                if score < best:
                    best, known = score, depth
                reason = "load" if not last else "prefix" if at == last else "spread"
                requests = row.requests + row.foreign_requests
                choices.append(Choice(names[row.slot], reason, score, int(depth * tokens), 0, 0, requests))
            if at:
                shared = shared or level.forks
                lacking += (depth - steps[at - 1].depth) * self._discount(level, shared)
        choices.sort(key=_by_score)
        # What is hot counts by its discount: the engines hold one copy of it for all.
        work, hot = prompt.work, len(pieces) - int(lacking)
        return Ranking(self.name, tuple(choices), None, work - known, work - hot)

    def on_routed(self, request: Request, slot: int) -> Held:
        """Learn at dispatch and not at completion: the requests of a burst then follow each other."""
        prompt, now, after, held = request.prompt, self._clock(), self._horizon.get(slot, -1), None
        for pieces in prompt.sequences:
            before = self.tree.insert(pieces, slot, now, after)
            if before is not None and pieces is prompt.pieces:
                held = before
        return held

    def on_completed(self, request: Request, slot: int, report: CacheReport | None, held: Held) -> None:
        """Correct by what the engine reused.

        A hit much shorter than expected does not mean that the replica lacks this prompt: it has just computed it.
        It means that its cache has evicted down to there, so prefixes that nobody used since are gone too: the
        replica's horizon moves up.
        """
        if report is None or report.prompt_tokens <= 0:
            return
        if report.hit + report.computed == 0:
            for pieces in request.prompt.sequences:
                self.tree.forget(pieces, slot, 0)
        elif held is not None and report.l0 < 0.5 * self._tokens(held[0]):
            self._corrections += 1
            self._horizon[slot] = max(self._horizon.get(slot, -1), held[1])
        if not request.prompt.truncated and request.prompt.size >= 1024:
            self._bytes_per_token += 0.05 * (request.prompt.size / report.prompt_tokens - self._bytes_per_token)

    def on_ended(self, request_id: str, slot: int) -> None: ...

    def on_checked(self, request: Request, choice: Choice, report: CacheReport) -> None:
        """Tokens are not counted here, so only hits are compared; and where none was expected, only those in L0: this
        strategy does not follow what L1 and L2 hold, and it is no fault of its own that they have what others sent.
        """
        if not choice.match:
            report = CacheReport(report.prompt_tokens, report.l0, computed=report.prompt_tokens - report.l0)
        self.check.observe(None, choice.match, report)

    def guess(self, request: Request, candidates: int) -> dict[int, int]:
        """Tokens that each replica among `candidates` probably holds, those with none left out. O(steps + holders)."""
        guessed: dict[int, int] = {}
        levels = self.tree.match(request.prompt.pieces, self._clock())
        for at in range(len(levels) - 1, -1, -1):
            for slot in slots_of(levels[at].holders & candidates):
                candidates ^= 1 << slot
                held = self._held(levels[: at + 1], slot)
                guessed[slot] = 0 if held is None else int(self._tokens(held.depth))
        return guessed

    def charges(self, request: Request) -> list[tuple[float, float]]:
        """The known steps of this prompt: (tokens up to its end, what share of computing it once more is charged)."""
        charges, shared = [], False
        for level in reversed(self.tree.match(request.prompt.pieces, self._clock())):
            shared = shared or level.forks
            charges.append((self._tokens(level.depth), self._discount(level, shared)))
        return charges[::-1]

    def on_replica_added(self, slot: int, replica: Replica) -> None:
        self._horizon.pop(slot, None)

    def on_replica_removed(self, slot: int) -> None:
        """O(1): the retired bit is masked out of every match and cleaned later."""
        self._horizon.pop(slot, None)

    def status(self) -> dict[str, float]:
        tree = self.tree
        return {
            "tree_nodes": float(len(tree)),
            "tree_bytes": float(tree.bytes),
            "tree_evictions": float(tree.evictions),
            "corrections": float(self._corrections),
            "bytes_per_token": self._bytes_per_token,
            **self.check.status(),
        }

    def check_integrity(self) -> None:
        self.tree.check_integrity()
        for slot in self._horizon:
            assert self._roster.live >> slot & 1, f"a horizon is kept for slot {slot}, which is not live"

    def _fresh(self, least: Row, holders: int, last_use: int) -> tuple[Row | None, int]:
        """The least busy of these that still hold a step last used at `last_use`, given the least busy of all; and the
        mask of those less busy whose caches were seen to have evicted further than that.
        """
        row: Row | None = least
        stale = 0
        while row is not None and self._horizon.get(row.slot, -1) >= last_use:
            stale |= row.bit
            row = self._load.least(holders ^ stale)
        return row, stale

    def _discount(self, level: Level, shared: bool) -> float:
        uses = self._shared_uses if shared else self._hot_uses
        per_holder = level.heat / level.holders.bit_count()
        return 1.0 if per_holder <= uses else uses / per_holder

    def _held(self, levels: list[Level], slot: int) -> Level | None:
        horizon = self._horizon.get(slot, -1)
        for level in reversed(levels):
            if level.holders >> slot & 1 and level.last_use > horizon:
                return level
        return None

    def _tokens(self, pieces: int) -> float:
        return pieces * PIECE_BYTES / self._bytes_per_token
