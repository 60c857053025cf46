"""Load from L2, or compute? Whichever is sooner, as far as was measured here. Pure; one instance a cache server.

Replicas tell how long prompts took of which nothing was loaded, the server's own event bus how long L2's loads took;
app.cost fits a line through each. Until both have been seen often enough, everything is loaded.
"""

import threading
from collections import OrderedDict

from app.cost import CostModel

ENOUGH = 8
"""Observations of each kind before anything is declined: a cold start or one slow read must not turn a tier off."""
_PENDING = 1024


class LoadingRule:
    """Any thread may call; nothing blocks or raises."""

    def __init__(self, chunk_tokens: int = 256) -> None:
        self.cost = CostModel()
        self.chunk_tokens = chunk_tokens
        self.declined = 0
        self._parts = 1
        self._lock = threading.Lock()
        self._began: OrderedDict[tuple[object, ...], tuple[float, int]] = OrderedDict()

    def worth_loading(self, chunks: int, parts: int) -> bool:
        """Whether to load so many chunks of a prompt from L2; `parts` is how many objects make up one chunk (ranks,
        times groups of layers)."""
        self._parts = max(1, parts)
        if self.cost.observations("l2") < ENOUGH:
            return True
        worth = self.cost.worth_loading("l2", chunks * self.chunk_tokens)
        self.declined += not worth
        return worth

    def computed(self, tokens: int, seconds: float) -> None:
        """A prompt of which so many tokens were computed and none loaded had its first token after so long."""
        self.cost.observe_prefill(tokens, seconds)

    def load_began(self, task: tuple[object, ...], objects: int, now: float) -> None:
        with self._lock:
            self._began[task] = (now, objects)
            while len(self._began) > _PENDING:
                self._began.popitem(last=False)

    def load_ended(self, task: tuple[object, ...], now: float) -> None:
        with self._lock:
            began = self._began.pop(task, None)
        if began is not None:
            self.cost.observe_load("l2", began[1] * self.chunk_tokens // self._parts, now - began[0])

    def status(self) -> dict[str, float]:
        return {"l2_loads_declined": float(self.declined), **self.cost.status()}

    def check_integrity(self) -> None:
        self.cost.check_integrity()
        with self._lock:
            assert len(self._began) <= _PENDING, len(self._began)


RULE = LoadingRule()
"""Of this process. LMCache makes its prefetch policy without arguments, so what it shares with our server module is
here."""
