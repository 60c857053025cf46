"""Send a request where its first token will come soonest, by what the tiers really hold.

    seconds(r) = wait(r) + service(r),   service(r) = load(L1 of r's node) + load(L2) + prefill(what no tier holds)
    score(r)   = wait(r) + crowding(r) + best + discount * (service(r) - best),   best = least service of any replica

L0 is what r's own events say, plus what requests in flight to r are about to put there; L1 what its node holds
behind that; L2 what the pool holds behind both. Speeds come from app.cost. The smallest score wins.

The score is the seconds to this request's first token, except for two things. Crowding (`_crowding_s`) is what the
answers that go on there will cost, in blocks held and in conversations that come back. The discount is prefix_aware's:
1 for what is little used. Loading or computing a hot prefix on one more replica is an investment that later requests
share, and without the discount each request would greedily take the one warm replica while others idle.

When a replica's events are not followed, the prefix tree's guess stands in for its L0, and the ranking says so.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence

from app.cost import Cost, CostModel
from app.kv_salt import kv_salt
from app.routing.kv_index import EngineIndex
from app.routing.kv_keys import block_keys, chunk_keys, pack, scope_seed
from app.routing.load import LoadBook
from app.routing.policy import RANKS, CacheReport, Choice, Ranking, Replica, Request
from app.routing.prefix_aware import LOAD_WEIGHT, RECENT_WEIGHT, PrefixAware
from app.routing.roster import Roster, slots_of
from app.routing.selfcheck import SelfCheck
from app.routing.tier_index import Scope, TierIndex

_FLIGHT_TOKENS = 64
"""Granularity at which prompts in flight are compared."""
_FLIGHTS = 256
"""Prompts in flight remembered per replica, the newest: one whose end we never hear of leaves this way."""
_HOLD_WEIGHT = 0.15
"""Seconds charged per second of prefill that the prompts in flight took, where they fill the engine."""
_NOBODY: OrderedDict[str, list[int]] = OrderedDict()
_PIECE_TOKENS = 64
"""About what a piece of prefix_aware is. Load is counted in tokens here, so its weights are scaled by this."""


class KvAware:
    """O(blocks of the longest hit + replicas). The indexes are fed from outside: `l0`, `l1`, `l2`; so is `cost`."""

    name = "kv_aware"

    def __init__(
        self,
        roster: Roster,
        load: LoadBook,
        clock: Callable[[], float],
        random: Callable[[], float],
        *,
        chunk_tokens: int = 256,
        base_models: Sequence[str] = (),
        max_blocks: int = 1_000_000,
        max_bytes: int = 64 << 20,
    ) -> None:
        self.l0 = EngineIndex(max_blocks)
        self.l1 = TierIndex(max_blocks)
        self.l2 = TierIndex(max_blocks)
        self.cost = CostModel()
        self.check = SelfCheck()
        load.request_units *= _PIECE_TOKENS
        self._fallback = PrefixAware(
            roster,
            load,
            clock,
            random,
            max_bytes=max_bytes,
            load_weight=LOAD_WEIGHT / _PIECE_TOKENS,
            recent_weight=RECENT_WEIGHT / _PIECE_TOKENS,
        )
        self._roster = roster
        self._load = load
        self._random = random
        self._chunk_tokens = chunk_tokens
        self._base_models = frozenset(base_models)
        self._nodes: dict[int, str] = {}
        self._flights: dict[int, OrderedDict[str, list[int]]] = {}
        self._holding: dict[int, int] = {}
        self._most_held = 1
        self._degraded = 0

    def rank(self, request: Request, candidates: int) -> Ranking:
        """A 128,000-token prompt over 64 replicas takes about 3 ms, nearly all of it naming its blocks."""
        known = self.l0.known(candidates)
        if request.tokens is None or not known:
            lacking = "no token ids for this request" if request.tokens is None else "no KV events from any replica"
            return self._fall_back(request, candidates, lacking)
        packed = pack(request.tokens)
        held = self._held(request, packed, candidates, known)
        on_node, reach = self._on_nodes(request, packed)
        total, chunk = len(request.tokens), self._chunk_tokens
        priced: list[_Priced] = []
        # Most replicas hold alike, so few services are priced; what is left per replica is its queue.
        services: dict[tuple[int, int, int], Cost] = {}
        for slot in slots_of(candidates):
            l0 = min(held.get(slot, 0), total)
            run = on_node.get(self._nodes.get(slot, ""), 0)
            # Behind its own node's run, or behind L0 if that is longer, what the pool has follows on.
            pool = reach[max(run, l0 // chunk)] if reach else run
            l1 = max(0, min(run * chunk, total) - l0)
            l2 = max(0, min(pool * chunk, total) - l0 - l1)
            service = services.get((l0, l1, l2))
            if service is None:
                # An engine computes at least the last token, whatever it holds.
                computed = max(1, total - l0 - l1 - l2)
                service = services[l0, l1, l2] = self.cost.first_token(computed, l1, l2)
            priced.append((slot, self._wait_s(slot), service, l0, l1, l2))
        choices = self._choices(priced, self._fallback.investment(request))
        missing = (candidates ^ known).bit_count()
        count = candidates.bit_count()
        why = f"no KV events from {missing} of {count} replicas" if missing else None
        self._degraded += bool(missing)
        work = 0
        if choices:
            work = self.cost.tokens_in((choices[0].prefill_s or 0.0) + (choices[0].load_s or 0.0))
        return Ranking(self.name, choices, why, work)

    def on_routed(self, request: Request, slot: int) -> None:
        self._fallback.on_routed(request, slot)
        if request.tokens is None:
            return
        adapter = self._adapter(request)
        keys = block_keys(
            pack(request.tokens), scope_seed(adapter, request.prompt.salt, _FLIGHT_TOKENS), _FLIGHT_TOKENS
        )
        flights = self._flights.setdefault(slot, OrderedDict())
        self._land(slot, request.id)
        flights[request.id] = keys
        self._holding[slot] = self._holding.get(slot, 0) + len(keys)
        self._most_held = max(self._most_held, self._holding[slot])
        if len(flights) > _FLIGHTS:
            self._land(slot, next(iter(flights)))

    def on_completed(self, request: Request, slot: int, report: CacheReport | None) -> None:
        self._fallback.on_completed(request, slot, report)
        self.on_ended(request, slot)

    def on_ended(self, request: Request, slot: int) -> None:
        """The request is no longer in flight: from now on only events say what it left behind."""
        self._land(slot, request.id)

    def on_checked(self, request: Request, choice: Choice, report: CacheReport) -> None:
        """Compare what was expected of the replica that served with what it reported."""
        counted = None if request.tokens is None else len(request.tokens)
        self.check.observe(counted, choice.match + choice.l1 + choice.l2, report)

    def on_replica_added(self, slot: int, replica: Replica) -> None:
        self._fallback.on_replica_added(slot, replica)
        self._nodes[slot] = replica.node

    def on_replica_removed(self, slot: int) -> None:
        """Its L0 is gone; its node's L1 stays, because that is the cache server's, which has its own owner in `l1`."""
        self._fallback.on_replica_removed(slot)
        self.l0.drop(slot)
        self._nodes.pop(slot, None)
        self._flights.pop(slot, None)
        self._holding.pop(slot, None)

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
        for slot, flights in self._flights.items():
            total = sum(map(len, flights.values()))
            assert self._holding[slot] == total, f"slot {slot}: {self._holding[slot]} pieces counted, {total} in flight"
        for slot in (*self._nodes, *self._flights, *self._holding):
            assert self._roster.live >> slot & 1, f"something is kept for slot {slot}, which is not live"

    # --- inside -----------------------------------------------------------------------------------------------------

    def _land(self, slot: int, request: str) -> None:
        keys = self._flights.get(slot, _NOBODY).pop(request, None)
        if keys is not None:
            self._holding[slot] -= len(keys)

    def _fall_back(self, request: Request, candidates: int, why: str) -> Ranking:
        self._degraded += 1
        ranking = self._fallback.rank(request, candidates)
        return Ranking(self.name, ranking.choices, why, ranking.prefill_units * _PIECE_TOKENS)

    def _choices(self, priced: "list[_Priced]", discount: float) -> tuple[Choice, ...]:
        """The best few by score, ties shuffled."""
        least = min((service.total_s for _, _, service, *_ in priced), default=0.0)
        scored = [
            (one[1] + self._crowding_s(one[0]) + least + discount * (one[2].total_s - least), self._random(), one)
            for one in priced
        ]
        return tuple(self._choice(score, one) for score, _, one in heapq.nsmallest(RANKS, scored, _by_score))

    def _choice(self, score: float, priced: "_Priced") -> Choice:
        slot, wait_s, service, l0, l1, l2 = priced
        reason = "l0" if l0 else "l1" if l1 else "l2" if l2 else "load"
        name, requests = self._roster.name(slot), self._load.requests(slot)
        return Choice(name, reason, score, l0, l1, l2, requests, wait_s, service.prefill_s, service.load_s)

    def _wait_s(self, slot: int) -> float:
        load = self._load
        requests = load.requests(slot)
        return self.cost.wait_s(max(0, load.units(slot) - load.request_units * requests), requests)

    def _crowding_s(self, slot: int) -> float:
        """Prompts in flight hold KV until their answers end, and an engine whose blocks are all held admits nobody,
        however little it has to prefill. How much it has room for nobody says; the most that any replica was seen
        with stands in for it, and what is far below costs nearly nothing. And between idle replicas, conversations
        go where fewer began.
        """
        holding = self._holding.get(slot, 0)
        full = holding / self._most_held
        tokens = _HOLD_WEIGHT * full * full * _FLIGHT_TOKENS * holding + RECENT_WEIGHT * self._load.recent(slot)
        return self.cost.wait_s(int(2 * tokens), 0)

    def _held(self, request: Request, packed: bytes, candidates: int, known: int) -> dict[int, int]:
        """L0 tokens per slot: by events, else by the tree's guess; and at least what is in flight there."""
        adapter, salt = self._adapter(request), request.prompt.salt
        held: dict[int, int] = {}
        for run in self.l0.match(packed, adapter, salt, known):
            for slot in slots_of(run.replicas):
                held.setdefault(slot, run.tokens)
        unknown = candidates ^ known
        if unknown:
            held |= self._fallback.guess(request, unknown)
        if any(self._flights.get(slot) for slot in slots_of(candidates)):
            mine = block_keys(packed, scope_seed(adapter, salt, _FLIGHT_TOKENS), _FLIGHT_TOKENS)
            for slot, flights in self._flights.items():
                at = held.get(slot, 0) // _FLIGHT_TOKENS
                if not flights or at >= len(mine) or not candidates >> slot & 1:
                    continue
                # One that agrees no further than what is held already differs there: one look instead of ten.
                deeper = [keys for keys in flights.values() if len(keys) > at and keys[at] == mine[at]]
                if deeper:
                    held[slot] = max(_agreement(mine, keys) for keys in deeper) * _FLIGHT_TOKENS
        return held

    def _on_nodes(self, request: Request, packed: bytes) -> tuple[dict[str, int], list[int]]:
        """Chunks that each node holds from the start, and how far the pool reaches from each chunk on."""
        if not self.l1.owners and not self.l2.owners:
            return {}, []
        chunks = chunk_keys(packed, self._chunk_tokens)
        # The servers' names leave out the model: a core routes to one.
        scope = Scope("", kv_salt(request.prompt.salt, self._adapter(request)))
        return self.l1.runs(scope, chunks), self.l2.reach(scope, chunks) if self.l2.owners else []

    def _adapter(self, request: Request) -> str:
        """The engine's LoRA name. Ray Serve LLM names an adapter's model `base:adapter`, and so does its engine."""
        model = request.prompt.model
        if self._base_models:
            return "" if model in self._base_models else model
        return model if ":" in model else ""


_Priced = tuple[int, float, Cost, int, int, int]
"""Slot, seconds of waiting, loads and prefill, and the tokens it has in L0, L1 and L2."""


def _by_score(entry: tuple[float, float, _Priced]) -> tuple[float, float]:
    return entry[:2]


def _agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading names two chained sequences share: by bisection, since agreement is monotone."""
    low, high = 0, min(len(one), len(other))
    if not high or one[0] != other[0]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
