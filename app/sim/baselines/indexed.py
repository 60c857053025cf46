"""For peers whose routers follow KV events: what each replica could reuse, tier by tier, from the same indexes."""

from typing import NamedTuple

from app.routing.kv_index import EngineIndex
from app.routing.kv_keys import chunk_keys, pack
from app.routing.policy import Replica, Request
from app.routing.roster import slots_of
from app.routing.tier_index import Scope, TierIndex
from app.sim.baselines.base import Baseline


class Reach(NamedTuple):
    """Tokens reusable from each tier, in the order of the prompt."""

    l0: int
    l1: int
    l2: int


class Indexed(Baseline):
    """All tiers report to it without delay or loss, which is more than these peers have with LMCache."""

    def prepare(self) -> None:
        self.l0, self.l1, self.l2 = EngineIndex(), TierIndex(), TierIndex()
        self._nodes: dict[int, str] = {}

    def reach(self, request: Request, candidates: int) -> dict[int, Reach]:
        assert request.tokens is not None, "the simulator gives every policy that listens the tokens"
        packed, chunk = pack(request.tokens), self._chunk_tokens
        held: dict[int, int] = {}
        for run in self.l0.match(packed, "", request.prompt.salt, candidates):
            for slot in slots_of(run.replicas):
                held.setdefault(slot, run.tokens)
        chunks = chunk_keys(packed, chunk)
        scope = Scope("")
        on_node, pool = self.l1.runs(scope, chunks), self.l2.reach(scope, chunks)
        found = {}
        for slot in slots_of(candidates):
            l0 = held.get(slot, 0)
            node_run = on_node.get(self._nodes.get(slot, ""), 0)
            furthest = pool[max(node_run, l0 // chunk)]
            l1 = max(0, node_run * chunk - l0)
            found[slot] = Reach(l0, l1, max(0, furthest * chunk - l0 - l1))
        return found

    def on_replica_added(self, slot: int, replica: Replica) -> None:
        self._nodes[slot] = replica.node

    def on_replica_removed(self, slot: int) -> None:
        self.l0.drop(slot)
        self._nodes.pop(slot, None)

    def check_integrity(self) -> None:
        for index in (self.l0, self.l1, self.l2):
            index.check_integrity()
