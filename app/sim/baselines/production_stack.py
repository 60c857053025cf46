"""vLLM production-stack at a6c01db0.

Source: vllm-project/production-stack, `src/vllm_router/routers/routing_logic.py`, `prefix/hashtrie.py`; loadaware is
its pull request 1035. Defaults: no minimal match, a trie that never evicts, beta 1.0.
"""

from app.routing.policy import Request
from app.routing.roster import any_slot
from app.sim.baselines.base import Routing


class StackPrefixAware(Routing):
    """Any of those with the longest match. Load plays no part."""

    name = "stack_prefixaware"

    def pick(self, request: Request, candidates: int) -> int:
        return any_slot(self.routes.longest(request.prompt.pieces, candidates)[1], self._random)


class StackLoadAware(Routing):
    """The largest matched / prompt - beta * (load - mean load) / max(1, mean load)."""

    name = "stack_loadaware"
    beta = 1.0

    def pick(self, request: Request, candidates: int) -> int:
        loads = self.loads(candidates)
        mean = sum(loads.values()) / len(loads)
        matched = self.routes.matches(request.prompt.pieces, candidates)
        length = max(1, len(request.prompt.pieces))

        def score(slot: int) -> tuple[float, float]:
            far = (loads[slot] - mean) / max(1.0, mean)
            return matched.get(slot, 0) / length - self.beta * far, self._random()

        return max(loads, key=score)
