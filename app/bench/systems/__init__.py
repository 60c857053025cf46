"""The systems that `tierserve bench compare` starts, measures and stops: a file each.

Each has a NAME and `started(engines)`, a context manager that yields its endpoints: several if the client is to take
them in turn. When the block ends nothing of the system is left.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from app.bench.load import Endpoint
from app.bench.systems import ray_prefix_affinity, ray_serve_llm, tierserve, vllm_round_robin
from app.bench.systems.engines import Engines, local_engines

__all__ = ["OURS", "SYSTEMS", "Engines", "System", "local_engines"]


@dataclass(frozen=True, slots=True)
class System:
    name: str
    started: Callable[[Engines], AbstractContextManager[tuple[Endpoint, ...]]]


OURS = tierserve.NAME
SYSTEMS: dict[str, System] = {
    each.NAME: System(each.NAME, each.started)
    for each in (tierserve, ray_serve_llm, ray_prefix_affinity, vllm_round_robin)
}
