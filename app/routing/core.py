"""One deployment's routing: who is there, how busy they are, and the policy that ranks them. The only door for
adapters.

    choose -> settled -> accepted -> (first_token) -> ended          each keyed by Serve's internal request id
    completed                                                       a cache report, from the ingress

Every method may be called from any thread: one lock covers all state, and no call holds it longer than one policy
step takes (microseconds; about a millisecond for a 128,000-token ranking). Nothing here blocks on anything else, and
nothing raises.
"""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import ParamSpec

import msgspec

from app.cost import CostModel, Tier
from app.routing.kv_aware import KvAware
from app.routing.kv_events import decode_batch
from app.routing.load import LoadBook
from app.routing.policy import CacheReport, Choice, Policy, Ranking, Replica, Request, by_load
from app.routing.records import Records
from app.routing.roster import Roster, slots_of
from app.routing.strategies import make_policy
from app.routing.tier_index import TierBatch, TierIndex

logger = logging.getLogger("tierserve.routing")

P = ParamSpec("P")

_ADAPTER_GAP = 4
"""Requests. Loading an adapter takes about as long as a few answers; there is nothing to measure it by here."""
_REASONS = 100
_WAITED = 0.25
"""Of a time to first token, how much may have been waiting for the rest to say how fast the replica is. A wait is an
estimate, and a wrong one would be taken for prefill; but replicas of a busy fleet are never without a decode: of 12,000
simulated chats 40 found one that had nothing at all to do.
"""


class RoutingCore:
    """`clock` must be monotonic seconds; `rng` decides ties. Both are injected so that tests and the simulator
    repeat exactly.
    """

    def __init__(
        self,
        strategy: str = "prefix_aware",
        options: dict[str, object] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        log_decisions: bool = False,
    ) -> None:
        draw = (rng or random.Random()).random
        self.roster = Roster()
        self._slots = self.roster.slots
        self.load = LoadBook(clock, draw)
        self.policy: Policy = make_policy(strategy, self.roster, self.load, clock, draw, options or {})
        self._kv = self.policy if isinstance(self.policy, KvAware) else None
        self._log_decisions = log_decisions
        self._lock = threading.Lock()
        self._replicas: dict[str, Replica] = {}
        self._records = Records()
        self._said: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    # --- replicas ---------------------------------------------------------------------------------------------------

    def update_replicas(self, replicas: Iterable[Replica]) -> None:
        """The complete set of replicas. A replica that comes back under a new id is a new one and holds nothing."""
        with self._lock:
            now_there = {replica.id: replica for replica in replicas}
            for gone in self._replicas.keys() - now_there.keys():
                self._remove(gone)
            for replica in now_there.values():
                known = replica.id in self._replicas
                self._replicas[replica.id] = replica
                if not known:
                    slot = self.roster.add(replica.id)
                    self.load.add_replica(slot)
                    self._guard(self.policy.on_replica_added, slot, replica)

    def replica_died(self, replica: str) -> None:
        with self._lock:
            self._remove(replica)

    # --- one request ------------------------------------------------------------------------------------------------

    def choose(self, request: Request, preferred: Iterable[str] = ()) -> Ranking:
        """Rank, and count the request on the best replica at once.

        `preferred` are the replicas that have the request's adapter loaded: only they are ranked, until even the least
        busy of them has `_ADAPTER_GAP` requests more than somebody else, who may then load the adapter as well.
        """
        with self._lock:
            self.load.expire()
            mask = self._candidates(preferred) if preferred else self.roster.live
            try:
                ranking = self.policy.rank(request, mask)
            except Exception as error:
                # A bug in a policy must cost affinity, never a request: Serve would leave the request waiting for ever.
                self._failed(error)
                ranking = by_load(self.policy.name, self.roster, self.load, mask, "policy failed")
            best = ranking.choices[0] if ranking.choices else None
            if best is not None:
                slot, waits = self._slots[best.replica], bool(best.load_s)
                self.load.assign(request.id, slot, ranking.prefill_units, ranking.held_units, waits)
            self._reasons["nobody" if best is None else best.reason] += 1
            self._records.add(request, ranking)
        if self._log_decisions:
            logger.info("%s", explain(request, ranking))
        if ranking.degraded is not None:
            self._say_once(ranking.degraded)
        return ranking

    def is_pending(self, request_id: str) -> bool:
        """Whether a choice was made that has not been settled: the request is being chosen for again."""
        with self._lock:
            return self.load.has_tentative(request_id)

    def settled(self, request_id: str, replica: str | None) -> None:
        """Where the request was sent; None if its caller left first. The policy learns now: see
        PrefixAware.on_routed.
        """
        with self._lock:
            slot = None if replica is None else self._slots.get(replica)
            self.load.settle(request_id, slot)
            record = self._records.get(request_id)
            if slot is not None and record is not None:
                record.replica = replica
                try:
                    record.held = self.policy.on_routed(record.request, slot)
                except Exception as error:
                    self._failed(error)

    def accepted(self, request_id: str, replica: str) -> None:
        with self._lock:
            slot = self._slots.get(replica)
            if slot is not None:
                self.load.confirm(request_id, slot)

    def first_token(self, request_id: str, replica: str) -> None:
        """Optional: makes load fall when prefill is over instead of when the answer is."""
        with self._lock:
            slot = self._slots.get(replica)
            if slot is not None:
                self.load.first_token(request_id, slot)

    def ended(self, request_id: str, replica: str) -> None:
        """Success, error, disconnect or rejection: the replica no longer works on it."""
        with self._lock:
            slot = self._slots.get(replica)
            if slot is not None:
                self.load.release(request_id, slot)
                try:
                    self.policy.on_ended(request_id, slot)
                except Exception as error:
                    self._failed(error)

    def observed(self, replica: str, ongoing: int) -> None:
        """The replica said how many requests it has: this is how routers of several ingress replicas see each
        other's load.
        """
        with self._lock:
            slot = self._slots.get(replica)
            if slot is not None:
                self.load.observe(slot, ongoing)

    def completed(
        self,
        request_id: str,
        report: CacheReport | None,
        replica: str | None = None,
        *,
        first_token_s: float | None = None,
    ) -> None:
        """What the engine says it reused. May come before or after `ended`, twice, or never.

        `request_id` is the internal id or the trace id; `replica` may be left out if the request was settled here.
        `first_token_s` is from dispatch to the first token; it calibrates the cost model.
        """
        with self._lock:
            record = self._records.find(request_id)
            served = replica if replica is not None or record is None else record.replica
            slot = None if served is None else self.roster.slot(served)
            if record is None or slot is None:
                return
            if report is not None:
                chosen = next((one for one in record.ranking.choices if one.replica == served), None)
                self._counts["hit_tokens_expected"] += 0 if chosen is None else chosen.match + chosen.l1 + chosen.l2
                self._counts["hit_tokens_reported"] += report.hit
                self._counts["prompt_tokens"] += report.prompt_tokens
                if chosen is not None:
                    self._guard(self.policy.on_checked, record.request, chosen, report)
                    self._calibrate(chosen, report, first_token_s)
            held = record.held if served == record.replica else None
            record.held = None
            self._guard(self.policy.on_completed, record.request, slot, report, held)

    def _calibrate(self, chosen: Choice, report: CacheReport, first_token_s: float | None) -> None:
        waited_s = chosen.wait_s if chosen.load else 0.0
        if self.cost is None or first_token_s is None or waited_s is None or waited_s > _WAITED * first_token_s:
            return
        self.cost.observe_first_token(first_token_s, report.computed, report.l1, report.l2, waited_s=waited_s)

    def request(self, request_id: str) -> Request | None:
        """A request chosen for before, so that a retry neither reads nor tokenises it again."""
        with self._lock:
            record = self._records.get(request_id)
            return None if record is None else record.request

    def ranking(self, request_id: str) -> Ranking | None:
        """The last ranking made for a request (internal or trace id), for the debug header; None if long ago."""
        with self._lock:
            record = self._records.find(request_id)
            return None if record is None else record.ranking

    def explanation(self, request_id: str) -> str | None:
        """The same as one JSON line, ready for a header; None if long ago."""
        with self._lock:
            record = self._records.find(request_id)
        return None if record is None else explain(record.request, record.ranking)

    # --- what the tiers hold (kv_aware only; for the other strategies these do nothing) -------------------------------

    @property
    def cost(self) -> CostModel | None:
        """The cost model to calibrate, if the strategy has one. Thread safe by itself."""
        return self._kv.cost if self._kv is not None else None

    def tokens_wanted(self) -> bool:
        """Whether the strategy ranks by token ids."""
        return self._kv is not None

    def adapter_is(self, identity: str) -> None:
        """A replica has loaded this LoRA adapter: `name@digest`, the name of its KV in L1 and L2."""
        if self._kv is not None:
            with self._lock:
                self._kv.adapter_is(identity)

    def engine_events(self, replica: str, seq: int, payload: bytes, *, replayed: bool = False) -> int | None:
        """One message of a replica's KV-event publisher, as it came off the wire.

        Returns the sequence number from which the caller must ask the publisher for a replay, or None. Feed the
        replay with `replayed=True` and end it with `replay_ended`, also if nobody answered. Call from any one thread
        per replica.
        """
        if self._kv is None:
            return None
        batch = decode_batch(payload)
        with self._lock:
            slot = self.roster.slot(replica)
            return None if slot is None else self._kv.l0.apply(slot, seq, batch, replayed=replayed)

    def replay_ended(self, replica: str) -> int | None:
        if self._kv is None:
            return None
        with self._lock:
            slot = self.roster.slot(replica)
            return None if slot is None else self._kv.l0.replay_ended(slot)

    def tier_events(self, tier: Tier, batch: TierBatch, *, replayed: bool = False) -> int | None:
        """One batch of a node's L1 (owner: the node id) or of a pool. Returns where to replay from, like
        `engine_events`.
        """
        if self._kv is None:
            return None
        with self._lock:
            return self._tier(self._kv, tier).apply(batch, replayed=replayed)

    def tier_replay_ended(self, tier: Tier, owner: str) -> int | None:
        if self._kv is None:
            return None
        with self._lock:
            return self._tier(self._kv, tier).replay_ended(owner)

    def tier_gone(self, tier: Tier, owner: str) -> None:
        """A node or its cache server went away, or a pool was unmounted: what it held cannot be loaded now."""
        if self._kv is not None:
            with self._lock:
                self._tier(self._kv, tier).drop(owner)

    @staticmethod
    def _tier(kv: KvAware, tier: Tier) -> TierIndex:
        return kv.l1 if tier == "l1" else kv.l2

    # --- whole state ------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, float]:
        """Counters since the start and sizes now."""
        with self._lock:
            # What others sent is believed for a while only; without a choice in between nobody would notice the end.
            self.load.expire()
            return {
                **{name: float(count) for name, count in self._counts.items()},
                **{f"reason:{reason}": float(count) for reason, count in self._reasons.items()},
                **self.policy.status(),
                "replicas": float(len(self.roster)),
                "in_flight": float(self.load.total_requests),
            }

    def check_integrity(self) -> None:
        """Raises AssertionError if any part contradicts itself or another."""
        with self._lock:
            self.roster.check_integrity()
            self.load.check_integrity()
            self.policy.check_integrity()
            self._records.check_integrity()
            assert set(self._replicas) == {self.roster.name(slot) for slot in slots_of(self.roster.live)}

    def _remove(self, replica: str) -> None:
        if self._replicas.pop(replica, None) is None:
            return
        slot = self.roster.slot(replica)
        assert slot is not None
        self.load.drop_replica(slot)
        # The roster last: removing may clean up, after which the slot can belong to another replica.
        self._guard(self.policy.on_replica_removed, slot)
        self.roster.remove(replica)

    def _say_once(self, why: str) -> None:
        """A degraded judgement is worth one line per reason, not one per request."""
        if why not in self._said and len(self._said) < _REASONS:
            self._said.add(why)
            logger.warning("%s ranks without all it needs: %s", self.policy.name, why)

    def _candidates(self, preferred: Iterable[str]) -> int:
        everyone, having = self.roster.live, self.roster.mask(preferred)
        if not having or having == everyone:
            return everyone
        (best,), (idle,) = self.load.first(having, 1), self.load.first(everyone, 1)
        return having if self.load.requests(best) <= self.load.requests(idle) + _ADAPTER_GAP else everyone

    def _guard(self, hook: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a policy's hook; a bug in it is logged and counted, and nothing else. What comes with every request is
        guarded in place: passing through here costs 0.1 us.
        """
        try:
            hook(*args, **kwargs)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Called while handling `error`."""
        logger.exception("policy %s failed", self.policy.name)
        self._counts[f"failed:{type(error).__name__}"] += 1


def explain(request: Request, ranking: Ranking) -> str:
    """One JSON line: the ranking with its reasons, for the log and the debug header."""
    return msgspec.json.encode(
        {"request": request.id, "model": request.prompt.model, **msgspec.to_builtins(ranking)}
    ).decode()
