"""Send a request where its first token will come soonest, by what the tiers really hold.

    service(r) = load(L1 of r's node) + load(L2) + prefill(what no tier holds)
    score(r)   = busy(r) + passed(r) + best + 2 * charged(r) * (service(r) - best),  best = least service of any replica

L0 is what r's own events say, plus what requests in flight to r are about to put there; L1 what its node holds
behind that; L2 what the pool holds behind both. Speeds come from app.cost. The smallest score wins.

The score is the seconds to this request's first token, except for four things. Busy is the wait and, with it, what
the answers that go on there will cost, in blocks held (`LoadBook.weight`) and in conversations that come back. Passed
is what this request costs another: while KV is loaded for a request, its engine computes others, and what was loaded
then waits for the whole prefill that passed it. So it is this request's prefill where a request loads, else nothing.
What r has to do and another has not counts twice, because it delays whoever comes to r next. Charged is prefix_aware's
discount, on average over what r lacks: 1 for what is little used. Loading or computing a hot prefix on one more replica
is an investment that later requests share, and without the discount each request would greedily take the one warm
replica while others idle.

Replicas that hold the same are a group with one price, and of a group only the least busy can be best: so a fleet is
ranked by groups and not replica by replica.

When a replica's events are not followed, the prefix tree's guess stands in for its L0, and the ranking says so.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from app.cost import Cost, CostModel
from app.kv_salt import kv_salt
from app.routing.flights import Flights
from app.routing.kv_index import EngineIndex
from app.routing.kv_keys import block_keys, chunk_keys, pack, scope_seed
from app.routing.load import LoadBook
from app.routing.nodes import Nodes
from app.routing.policy import RANKS, CacheReport, Choice, Count, Held, Ranking, Replica, Request
from app.routing.prefix_aware import LOAD_WEIGHT, RECENT_WEIGHT, PrefixAware
from app.routing.roster import Roster
from app.routing.runs import disjoint, few_of
from app.routing.selfcheck import SelfCheck
from app.routing.tier_index import Scope, TierIndex

_FLIGHT_TOKENS = 64
"""Granularity at which prompts in flight are compared."""
_RUNNING_TOKENS = 16
"""What a running request costs the next one, in tokens of prefill: one more row in each step."""
_CROWD_WEIGHT = 0.3
_RECENT_WEIGHT = 0.02
"""Of what CostModel.wait_s halves. Both from the conversation trace; with twice the first, 8 replicas at load 0.9
answer 4 % later.
"""
_EXTRA_WORK = 2.0
"""Times the seconds that a replica would load and compute although another would not: whoever comes next waits for them
too. Simulated with 1, 1.5, 2 and 3: on 32 replicas at load 0.9 the trace is 1 % sooner with 2 than with 1, chats 1 %
(p90 3 %), little else differs. On real engines, where a load takes their one thread, 1 moved a third of all turns.
"""
_PIECE_TOKENS = 64
"""About what a piece of prefix_aware is. Load is counted in tokens here, so its weights are scaled by this."""


class KvAware:
    """O(blocks of the longest hit + groups), and there are at most a few hundred of those, however large the fleet. The
    indexes are fed from outside: `l0`, `l1`, `l2`; so is `cost`.
    """

    name = "kv_aware"

    def __init__(
        self,
        roster: Roster,
        load: LoadBook,
        clock: Callable[[], float],
        random: Callable[[], float],
        *,
        chunk_tokens: Count = 256,
        base_models: Sequence[str] = (),
        max_blocks: Count = 1_000_000,
        max_bytes: Count = 64 << 20,
    ) -> None:
        self.l0 = EngineIndex(max_blocks)
        self.l1 = TierIndex(max_blocks)
        self.l2 = TierIndex(max_blocks)
        self.cost = CostModel()
        self.check = SelfCheck()
        load.request_units, load.crowd_weight = _RUNNING_TOKENS, _CROWD_WEIGHT
        self._fallback = PrefixAware(
            roster,
            load,
            clock,
            max_bytes=max_bytes,
            load_weight=LOAD_WEIGHT / _PIECE_TOKENS,
            recent_weight=RECENT_WEIGHT / _PIECE_TOKENS,
        )
        load.recent_share = _RECENT_WEIGHT
        self._roster = roster
        self._load = load
        self._random = random
        self._chunk_tokens = chunk_tokens
        self._base_models = frozenset(base_models)
        self._nodes = Nodes(self.l1)
        self._flights = Flights()
        self._identities: dict[str, str] = {}
        self._degraded = 0

    def rank(self, request: Request, candidates: int) -> Ranking:
        """A 128,000-token prompt over 64 replicas takes about 3 ms, nearly all of it naming its blocks."""
        known = self.l0.known(candidates)
        if request.tokens is None or not known:
            lacking = "no token ids for this request" if request.tokens is None else "no KV events from any replica"
            return self._fall_back(request, candidates, lacking)
        groups = self._groups(request, pack(request.tokens), candidates, known)
        charges = self._fallback.charges(request)
        best = self._best(groups, charges)
        missing = (candidates ^ known).bit_count()
        why = f"no KV events from {missing} of {candidates.bit_count()} replicas" if missing else None
        self._degraded += bool(missing)
        service = best[0].group.service
        work = self.cost.tokens_in(service.prefill_s + service.load_s)
        held = int(len(request.tokens) * _charged(charges, 0, len(request.tokens)))
        return Ranking(self.name, tuple(map(self._choice, best)), why, work, held)

    def on_routed(self, request: Request, slot: int) -> Held:
        held = self._fallback.on_routed(request, slot)
        if request.tokens is None:
            return held
        seed = scope_seed(self._adapter(request), request.prompt.salt, _FLIGHT_TOKENS)
        self._flights.start(slot, request.id, block_keys(pack(request.tokens), seed, _FLIGHT_TOKENS))
        self._load.room = self.l0.most_tokens
        return held

    def on_completed(self, request: Request, slot: int, report: CacheReport | None, held: Held) -> None:
        self._fallback.on_completed(request, slot, report, held)
        self.on_ended(request.id, slot)

    def on_ended(self, request_id: str, slot: int) -> None:
        """The request is no longer in flight: from now on only events say what it left behind."""
        self._flights.land(slot, request_id)

    def on_checked(self, request: Request, choice: Choice, report: CacheReport) -> None:
        """Compare what was expected of the replica that served with what it reported."""
        counted = None if request.tokens is None else len(request.tokens)
        self.check.observe(counted, choice.match + choice.l1 + choice.l2, report)

    def adapter_is(self, identity: str) -> None:
        """What a replica says of an adapter that it has loaded: `name@digest` is what its KV is keyed by in L1 and L2.
        Until one has said so, nothing of the adapter is expected there.
        """
        self._identities[identity.rpartition("@")[0]] = identity

    def on_replica_added(self, slot: int, replica: Replica) -> None:
        self._fallback.on_replica_added(slot, replica)
        self._nodes.add(slot, replica.node)

    def on_replica_removed(self, slot: int) -> None:
        """Its L0 is gone; its node's L1 stays, because that is the cache server's, which has its own owner in `l1`."""
        self._fallback.on_replica_removed(slot)
        self.l0.drop(slot)
        self._flights.drop(slot)
        self._nodes.remove(slot)

    def status(self) -> dict[str, float]:
        return {
            **self._fallback.status(),
            **self.l0.status(),
            **self.l1.status("l1"),
            **self.l2.status("l2"),
            **self.cost.status(),
            **self.check.status(),
            "degraded": float(self._degraded),
        }

    def check_integrity(self) -> None:
        self._fallback.check_integrity()
        for index in (self.l0, self.l1, self.l2):
            index.check_integrity()
        self.cost.check_integrity()
        self._flights.check_integrity()
        self._nodes.check_integrity()
        for slot in (*self._nodes.slots, *self._flights.slots):
            assert self._roster.live >> slot & 1, f"something is kept for slot {slot}, which is not live"

    # --- inside -----------------------------------------------------------------------------------------------------

    def _fall_back(self, request: Request, candidates: int, why: str) -> Ranking:
        self._degraded += 1
        ranking = self._fallback.rank(request, candidates)
        work, whole = ranking.prefill_units * _PIECE_TOKENS, ranking.held_units * _PIECE_TOKENS
        return Ranking(self.name, ranking.choices, why, work, whole)

    def _best(self, groups: "list[_Group]", charges: list[tuple[float, float]]) -> "list[_Scored]":
        """The best few by score. Of each group only the least busy can be among them, and no group whose service alone
        costs more than the worst of the few found so far.
        """
        least, loading = min(group.service.total_s for group in groups), self._load.loading
        floors: list[tuple[float, int, _Group]] = []
        for group in groups:
            extra_s = _EXTRA_WORK * (group.service.total_s - least)
            floor = least + _charged(charges, group.l0) * extra_s
            if free := group.replicas & ~loading:
                floors.append((floor, free, group))
            if passed := group.replicas & loading:
                floors.append((floor + group.service.prefill_s, passed, group))
        best: list[_Scored] = []
        for floor, replicas, group in sorted(floors, key=_floor):
            if len(best) == RANKS and floor >= best[-1].score:
                break
            slots = self._load.first(replicas, RANKS)
            best += [_Scored(floor + self._busy_s(slot), self._random(), slot, group) for slot in slots]
            best.sort(key=_by_score)
            del best[RANKS:]
        return best

    def _choice(self, one: "_Scored") -> Choice:
        slot, (_, service, l0, l1, l2) = one.slot, one.group
        reason = "l0" if l0 else "l1" if l1 else "l2" if l2 else "load"
        name, requests = self._roster.name(slot), self._load.requests(slot)
        wait_s = self.cost.wait_s(self._load.units(slot))
        return Choice(name, reason, one.score, l0, l1, l2, requests, wait_s, service.prefill_s, service.load_s)

    def _busy_s(self, slot: int) -> float:
        """Waiting, crowding, and what the replica was given lately: between idle ones, conversations go where fewer
        began.
        """
        return self.cost.wait_s(self._load.weight(slot) + int(_RECENT_WEIGHT * self._load.recent(slot)))

    # --- who holds what ---------------------------------------------------------------------------------------------

    def _groups(self, request: Request, packed: bytes, candidates: int, known: int) -> "list[_Group]":
        """The candidates by what they hold, so that each kind of service is priced once, however many offer it."""
        total, chunk = len(request.tokens or ()), self._chunk_tokens
        nodes, reach = self._on_nodes(request, packed)
        groups: list[_Group] = []

        def add(replicas: int, l0: int, run: int) -> None:
            # Behind its own node's run, or behind L0 if that is longer, what the pool has follows on.
            pool = reach[max(run, l0 // chunk)] if reach else run
            l1 = max(0, min(run * chunk, total) - l0)
            l2 = max(0, min(pool * chunk, total) - l0 - l1)
            # An engine computes at least the last token, whatever it holds.
            computed = max(1, total - l0 - l1 - l2)
            groups.append(_Group(replicas, self.cost.first_token(computed, l1, l2), l0, l1, l2))

        for tokens, replicas in self._held(request, packed, candidates, known):
            l0 = min(tokens, total)
            for run, there in nodes:
                if run * chunk <= l0:
                    break
                if here := replicas & there:
                    add(here, l0, run)
                    replicas ^= here
            if replicas:
                add(replicas, l0, 0)
        return groups

    def _held(self, request: Request, packed: bytes, candidates: int, known: int) -> list[tuple[int, int]]:
        """(L0 tokens, replicas that hold so many), each candidate once: by events, else by the tree's guess; and at
        least what is in flight there.
        """
        adapter, salt = self._adapter(request), request.prompt.salt
        runs = [(run.tokens, run.replicas) for run in self.l0.match(packed, adapter, salt, known)]
        if candidates ^ known:
            guessed = self._fallback.guess(request, candidates ^ known)
            runs += [(tokens, 1 << slot) for slot, tokens in guessed.items()]
        if self._flights:
            mine = block_keys(packed, scope_seed(adapter, salt, _FLIGHT_TOKENS), _FLIGHT_TOKENS)
            runs += [(pieces * _FLIGHT_TOKENS, slots) for pieces, slots in self._flights.runs(mine, candidates)]
        return few_of(disjoint(runs, candidates))

    def _on_nodes(self, request: Request, packed: bytes) -> tuple[list[tuple[int, int]], list[int]]:
        """(chunks from the start, replicas whose nodes hold so many), longest first; and how far the pool reaches from
        each chunk on.
        """
        if not self.l1.owners and not self.l2.owners:
            return [], []
        chunks = chunk_keys(packed, self._chunk_tokens)
        # The servers' names leave out the model: a core routes to one.
        adapter = self._adapter(request)
        scope = Scope("", kv_salt(request.prompt.salt, self._identities.get(adapter, adapter)))
        runs = [(run, self._nodes.beside(owners)) for run, owners in reversed(self.l1.groups(scope, chunks))]
        return few_of(runs), self.l2.reach(scope, chunks) if self.l2.owners else []

    def _adapter(self, request: Request) -> str:
        """The engine's LoRA name. Ray Serve LLM names an adapter's model `base:adapter`, and so does its engine."""
        model = request.prompt.model
        if self._base_models:
            return "" if model in self._base_models else model
        return model if ":" in model else ""


class _Group(NamedTuple):
    """Replicas at which a request would cost the same if nobody waited there."""

    replicas: int
    service: Cost
    l0: int
    l1: int
    l2: int


class _Scored(NamedTuple):
    score: float
    tie: float
    slot: int
    group: _Group


def _charged(charges: list[tuple[float, float]], held: int, until: int = 0) -> float:
    """What share of getting the known steps behind `held` tokens is charged, on average over their tokens, and over
    those up to `until` that nobody knows, which are charged in full.
    """
    start, whole, charged = float(held), 0.0, 0.0
    for end, share in (*charges, (float(until), 1.0)):
        if end > start:
            whole += end - start
            charged += share * (end - start)
            start = end
    return charged / whole if whole else 1.0


def _floor(entry: tuple[float, int, _Group]) -> float:
    return entry[0]


def _by_score(one: _Scored) -> tuple[float, float]:
    return one[:2]
