"""Peers' published routing rules as policies, each in a file with its source and defaults.

They are their formulas on our bookkeeping, not their code: queues are exact, events immediate, pieces of prompt 64
tokens long where theirs are characters, and a table never loses an entry where theirs can.
"""

from app.sim.baselines.aibrix import AibrixPrefixCache
from app.sim.baselines.base import Baseline
from app.sim.baselines.dynamo import DynamoCost
from app.sim.baselines.llm_d import LlmdApproximate, LlmdPrecise
from app.sim.baselines.production_stack import StackLoadAware, StackPrefixAware
from app.sim.baselines.ray import RayPow2, RayPrefix
from app.sim.baselines.sglang import SglangCacheAware

__all__ = ["BASELINES"]

_ALL: tuple[type[Baseline], ...] = (
    RayPow2,
    RayPrefix,
    StackPrefixAware,
    StackLoadAware,
    SglangCacheAware,
    AibrixPrefixCache,
    LlmdApproximate,
    LlmdPrecise,
    DynamoCost,
)
BASELINES = {one.name: one for one in _ALL}
