"""llm-d's scheduler at ebab6879: weighted scorers, the highest sum wins.

Source: llm-d/llm-d-router, `pkg/epp/framework/plugins/*/README.md`, `config/charts/routerlib/templates/_config.yaml`;
llm-d/llm-d-kv-cache, `pkg/kvcache/backend.go`. Chart: queue 2, KV utilisation 2, prefix 3, approximate prefixes in
blocks of 64 tokens, 31,250 a pod. Sample precise configuration: prefix 2, KV utilisation 1, queue 1, a block in host
memory at 0.8. What the pool holds counts for nothing in either.
"""

from collections import OrderedDict
from collections.abc import Callable

from app.routing.policy import Request
from app.routing.roster import slots_of
from app.sim.baselines.base import Routing
from app.sim.baselines.indexed import Indexed
from app.sim.gauges import Gauge

_NOTHING = Gauge(0, 0.0)


def weighted(
    prefix: dict[int, float], gauges: dict[int, Gauge], weights: tuple[float, float, float], random: Callable[[], float]
) -> int:
    """prefix * w0 + (1 - usage) * w1 + (most waiting - waiting) / (most - fewest) * w2; ties at random."""
    most = max(gauge.waiting for gauge in gauges.values())
    fewest = min(gauge.waiting for gauge in gauges.values())

    def score(slot: int) -> tuple[float, float]:
        gauge = gauges[slot]
        queue = (most - gauge.waiting) / (most - fewest) if most > fewest else 1.0
        share = prefix.get(slot, 0.0)
        return weights[0] * share + weights[1] * (1.0 - gauge.usage) + weights[2] * queue, random()

    return max(gauges, key=score)


class LlmdApproximate(Routing):
    """Prefixes by where they were sent; per pod only the latest `lru` blocks are believed."""

    name = "llm_d_approximate"
    weights = (3.0, 2.0, 2.0)
    lru, longest = 31_250, 131_072 // 64

    def prepare(self) -> None:
        super().prepare()
        self._gauge: Callable[[str], Gauge] = lambda replica: _NOTHING
        self._latest: dict[int, OrderedDict[int, None]] = {}

    def watch(self, gauge: Callable[[str], Gauge]) -> None:
        self._gauge = gauge

    def pick(self, request: Request, candidates: int) -> int:
        pieces = request.prompt.pieces[: self.longest]
        matched = self.routes.matches(pieces, candidates)
        prefix = {slot: count / max(1, len(pieces)) for slot, count in matched.items()}
        gauges = {slot: self._gauge(self._roster.name(slot)) for slot in slots_of(candidates)}
        return weighted(prefix, gauges, self.weights, self._random)

    def on_routed(self, request: Request, slot: int) -> None:
        pieces = request.prompt.pieces[: self.longest]
        self.routes.insert(pieces, slot)
        latest = self._latest.setdefault(slot, OrderedDict())
        for piece in pieces:
            latest[piece] = None
            latest.move_to_end(piece)
        while len(latest) > self.lru:
            self.routes.forget(latest.popitem(last=False)[0], slot)

    def on_replica_removed(self, slot: int) -> None:
        super().on_replica_removed(slot)
        self._latest.pop(slot, None)


class LlmdPrecise(Indexed):
    """Prefixes by the engines' events: each block by the best medium that has it."""

    name = "llm_d_precise"
    weights = (2.0, 1.0, 1.0)
    host = 0.8

    def prepare(self) -> None:
        super().prepare()
        self._gauge: Callable[[str], Gauge] = lambda replica: _NOTHING

    def watch(self, gauge: Callable[[str], Gauge]) -> None:
        self._gauge = gauge

    def pick(self, request: Request, candidates: int) -> int:
        total = max(1, len(request.tokens or ()))
        prefix = {slot: (one.l0 + self.host * one.l1) / total for slot, one in self.reach(request, candidates).items()}
        gauges = {slot: self._gauge(self._roster.name(slot)) for slot in slots_of(candidates)}
        return weighted(prefix, gauges, self.weights, self._random)
