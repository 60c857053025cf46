"""Ray Serve's routers, 2.60.

Source: ray-project/ray, `pow_2_router.py` and `routing_policies/prefix_aware/prefix_aware_router.py`. Defaults:
imbalanced_threshold infinity (10 in its documentation), match_rate_threshold 0.1, no eviction from its tree.
"""

import math

from app.routing.policy import Request
from app.sim.baselines.base import Baseline, Routing


class RayPow2(Baseline):
    """Two at random, the one with the shorter queue."""

    name = "ray_pow2"

    def pick(self, request: Request, candidates: int) -> int:
        return self.two(candidates)


class RayPrefix(Routing):
    """PrefixCacheAffinityRouter: with a match of at least a tenth of the prompt the replicas that have it, else those
    with the smallest tree; the power of two decides among them."""

    name = "ray_prefix"
    imbalanced_threshold = math.inf
    match_rate = 0.1

    def pick(self, request: Request, candidates: int) -> int:
        loads = self.loads(candidates)
        if max(loads.values()) - min(loads.values()) > self.imbalanced_threshold:
            return self.two(candidates)
        pieces = request.prompt.pieces
        depth, holders = self.routes.longest(pieces, candidates)
        if pieces and depth / len(pieces) >= self.match_rate:
            return self.two(holders)
        sizes = {slot: self.routes.sizes.get(slot, 0) for slot in loads}
        smallest = min(sizes.values())
        return self.two(sum(1 << slot for slot, size in sizes.items() if size == smallest))
