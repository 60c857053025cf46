"""Whether each cache server runs, and what of that is worth a line: it is down, it is back.

up --its process ends, or answers nothing for long--> down --its NodeCache has started another--> up
"""

import time
from collections.abc import Callable, Iterable

from app.tiers.pulse import Pulse

_ANSWER_S = 1.0


def read_pulses() -> list[Pulse]:
    """Asks the node caches of the cluster that this process is connected to; one that does not answer is left out."""
    import ray

    from app.tiers.node_cache import node_caches

    if not ray.is_initialized():  # asking would start a cluster
        return []
    try:
        asked = [cache.pulse.remote() for cache in node_caches()]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_S) if asked else ([], [])
        return [pulse for pulse in map(_pulse, answered) if pulse is not None]
    except Exception:  # Ray is being stopped
        return []


def _pulse(answer: object) -> Pulse | None:
    import ray

    try:
        found: Pulse = ray.get(answer)
    except ray.exceptions.RayError:  # the actor has ended, with its last lease
        return None
    return found


class CacheLosses:
    """Tells once when a cache server is down, and when it is back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._down: dict[str, float] = {}  # key -> since when

    def changes(self, pulses: Iterable[Pulse]) -> list[str]:
        return [line for pulse in pulses if (line := self._change(pulse))]

    def _change(self, pulse: Pulse) -> str | None:
        name = f"cache {pulse.key}"
        if pulse.up:
            since = self._down.pop(pulse.key, None)
            if since is None:
                return None
            return f"{name}: its server is back after {self._clock() - since:.0f} s (L1 begins empty)"
        if pulse.key in self._down:
            return None
        self._down[pulse.key] = self._clock()
        return f"{name}: its server is down, engines go on without L1 and L2 while another is started"
