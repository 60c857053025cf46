"""SGLang's router, policy cache_aware.

Source: sgl-project/sglang, `sgl-model-gateway/src/policies/cache_aware.rs`. Defaults: imbalanced above an absolute gap
of 64 and a factor of 1.5, cache threshold 0.3, tree limit of 67,108,864 nodes (never reached here).
"""

from app.routing.policy import Request
from app.routing.roster import any_slot
from app.sim.baselines.base import Routing


class SglangCacheAware(Routing):
    """The shortest queue if the fleet is imbalanced; else the best match if it is more than 0.3 of the prompt, else
    the least load."""

    name = "sglang_cache_aware"
    gap, factor, threshold = 64, 1.5, 0.3

    def pick(self, request: Request, candidates: int) -> int:
        loads = self.loads(candidates)
        most, fewest = max(loads.values()), min(loads.values())
        if most - fewest > self.gap and most > self.factor * fewest:
            return self.least(candidates)
        pieces = request.prompt.pieces
        depth, holders = self.routes.longest(pieces, candidates)
        if pieces and depth / len(pieces) > self.threshold:
            return any_slot(holders, self._random)
        return self.least(candidates)
