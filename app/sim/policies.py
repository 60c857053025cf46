"""Every policy by name: ours from production's registry, peers' from `baselines`."""

import random
from collections.abc import Callable

from app.errors import SettingsError
from app.routing.core import RoutingCore
from app.routing.strategies import STRATEGIES
from app.sim.baselines import BASELINES
from app.sim.fleet import MakeCore

OURS = tuple(STRATEGIES)
ALL = (*OURS, *BASELINES)


def core_maker(name: str) -> MakeCore:
    """Raises SettingsError for an unknown name."""
    if name not in ALL:
        raise SettingsError(f"unknown policy {name!r}: choose from {', '.join(ALL)}")

    def make(clock: Callable[[], float], rng: random.Random, chunk_tokens: int) -> RoutingCore:
        if name in STRATEGIES:
            options: dict[str, object] = {"chunk_tokens": chunk_tokens} if name == "kv_aware" else {}
            return RoutingCore(name, options, clock=clock, rng=rng)
        # The core's bookkeeping with a peer's judgement: replaced before there is any replica or request.
        core = RoutingCore("round_robin", clock=clock, rng=rng)
        core.policy = BASELINES[name](core.roster, core.load, clock, rng.random, chunk_tokens)
        return core

    return make
