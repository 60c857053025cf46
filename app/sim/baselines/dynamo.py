"""NVIDIA Dynamo's KV router.

Source: ai-dynamo/dynamo, `docs/components/router/{router-concepts,router-configuration,router-offloading}.md`.
Defaults: overlap weight 1.0, temperature 0 (the lowest cost wins), credits device 1.0, host 0.75, disk 0.25.
"""

from app.routing.policy import CacheReport, Held, Request
from app.sim.baselines.indexed import Indexed


class DynamoCost(Indexed):
    """max(blocks being prefilled + prompt's blocks - credit, 0) + blocks being decoded + prompt's blocks, the lowest.

    A request counts as being prefilled until its first token and as being decoded until its end.
    """

    name = "dynamo"
    device, host, disk = 1.0, 0.75, 0.25

    def prepare(self) -> None:
        super().prepare()
        self._load.request_units = 0
        self._active: dict[int, dict[str, int]] = {}

    def pick(self, request: Request, candidates: int) -> int:
        length = len(request.prompt.pieces)
        per_piece = max(1, len(request.tokens or ())) / max(1, length)
        costs = {}
        for slot, reach in self.reach(request, candidates).items():
            credit = (self.device * reach.l0 + self.host * reach.l1 + self.disk * reach.l2) / per_piece
            prefill = max(self._load.units(slot) + length - credit, 0.0)
            costs[slot] = (prefill + sum(self._active.get(slot, {}).values()) + length, self._random())
        return min(costs, key=lambda slot: costs[slot])

    def on_routed(self, request: Request, slot: int) -> None:
        self._active.setdefault(slot, {})[request.id] = len(request.prompt.pieces)

    def on_ended(self, request_id: str, slot: int) -> None:
        self._active.get(slot, {}).pop(request_id, None)

    def on_completed(self, request: Request, slot: int, report: CacheReport | None, held: Held) -> None:
        self.on_ended(request.id, slot)

    def on_replica_removed(self, slot: int) -> None:
        super().on_replica_removed(slot)
        self._active.pop(slot, None)
