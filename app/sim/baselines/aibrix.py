"""AIBrix's prefix-cache policy at e3e10f9e.

Source: vllm-project/aibrix, `pkg/plugins/gateway/algorithms/prefix_cache.go`. Defaults as in its code: imbalanced above
8 running requests, one standard deviation (its README says 16 and two); entries live for 20 minutes.
"""

import math
from collections import OrderedDict

from app.routing.policy import Request
from app.routing.roster import any_slot
from app.sim.baselines.base import Routing


class AibrixPrefixCache(Routing):
    """The least loaded if the fleet is imbalanced; else by match and then load, the first whose load is no more than
    the mean plus a standard deviation."""

    name = "aibrix_prefix_cache"
    gap, deviations, ttl_s = 8, 1.0, 1200.0

    def prepare(self) -> None:
        super().prepare()
        self._sent: OrderedDict[tuple[int, int], float] = OrderedDict()

    def pick(self, request: Request, candidates: int) -> int:
        self._expire()
        loads = self.loads(candidates)
        fewest = min(loads.values())
        if max(loads.values()) - fewest > self.gap:
            return any_slot(sum(1 << slot for slot, load in loads.items() if load == fewest), self._random)
        mean = sum(loads.values()) / len(loads)
        spread = math.sqrt(sum((load - mean) ** 2 for load in loads.values()) / len(loads))
        matched = self.routes.matches(request.prompt.pieces, candidates)
        for slot in sorted(matched, key=lambda slot: (-matched[slot], loads[slot], self._random())):
            if loads[slot] <= mean + self.deviations * spread:
                return slot
        return self.least(candidates)

    def on_routed(self, request: Request, slot: int) -> None:
        super().on_routed(request, slot)
        now = self._clock()
        for piece in request.prompt.pieces:
            self._sent[(piece, slot)] = now
            self._sent.move_to_end((piece, slot))

    def _expire(self) -> None:
        until = self._clock() - self.ttl_s
        while self._sent and next(iter(self._sent.values())) < until:
            piece, slot = self._sent.popitem(last=False)[0]
            self.routes.forget(piece, slot)

    def on_replica_removed(self, slot: int) -> None:
        for key in [key for key in self._sent if key[1] == slot]:
            del self._sent[key]
        super().on_replica_removed(slot)
