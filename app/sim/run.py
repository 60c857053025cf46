"""One experiment: a workload at a load on a fleet, under each of some policies."""

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from app.errors import SettingsError
from app.sim import scenarios
from app.sim.fleet import Fleet
from app.sim.hardware import Calibration
from app.sim.outcome import Outcome
from app.sim.policies import core_maker
from app.sim.spec import FleetSpec
from app.sim.workload import Totals, Workload, totals

SCENARIOS = ("none", "slow-l2", "node-death", "flood", "hot-change")


@dataclass(frozen=True, slots=True)
class Experiment:
    """A fleet and what it is asked, ready to run under any policy."""

    spec: FleetSpec
    workload: Workload
    totals: Totals
    speed_up: float
    """Arrivals are this many times as fast as the workload has them."""

    def run(self, policy: str) -> Outcome:
        """Raises SettingsError for an unknown policy."""
        prompt = max(1, self.totals.tokens // max(1, self.totals.requests))
        with _quiet(), _uncollected():
            return Fleet(self.spec, self.workload, core_maker(policy), prompt).run()


def prepare(spec: FleetSpec, workload: Workload, load: float, scenario: str = "none") -> Experiment:
    """`load` is the engine time that the requests take without any cache over the time that the fleet has: arrivals
    are sped up or slowed down to that, so a load means the same on 8 replicas as on 128.

    Raises SettingsError for an unknown scenario, an empty workload, or a prompt that no engine has room for.
    """
    found = totals(workload, spec.speed.work_s)
    if not found.requests or found.last_at <= 0:
        raise SettingsError(f"{workload.name} has no requests, or all at one moment")
    if found.longest > spec.speed.l0_tokens - workload.block_tokens:
        raise SettingsError(f"{found.longest} tokens of one request do not fit into L0 of {spec.speed.l0_tokens}")
    speed_up = found.last_at * spec.replicas * load / found.work_s
    last_at = found.last_at / speed_up
    timed = workload.sped_up(speed_up)
    spec, timed = _changed(spec, timed, last_at, scenario, found)
    return Experiment(spec, timed, found, speed_up)


def compare(
    experiment: Experiment, policies: Sequence[str], tell: Callable[[str], None] = lambda name: None
) -> dict[str, dict[str, float]]:
    """Policy -> its figures. `tell` hears of each before it is run."""
    rows = {}
    for name in policies:
        tell(name)
        rows[name] = experiment.run(name).summary()
    return rows


def best_of(rows: dict[str, dict[str, float]], figure: str, names: Iterable[str]) -> str:
    """The policy with the smallest figure."""
    return min(names, key=lambda name: rows[name][figure])


def _changed(
    spec: FleetSpec, workload: Workload, last_at: float, scenario: str, found: Totals
) -> tuple[FleetSpec, Workload]:
    if scenario == "none":
        return spec, workload
    if scenario == "slow-l2":
        return scenarios.slower_l2(spec, 2.0), workload
    if scenario == "node-death":
        return scenarios.dead_node(spec, last_at), workload
    if scenario == "flood":
        # As many requests a second again as everybody else together.
        return spec, scenarios.flooded(workload, last_at, found.requests / last_at)
    if scenario == "hot-change":
        return spec, scenarios.changed_prefix(workload, last_at)
    raise SettingsError(f"unknown scenario {scenario!r}: choose from {', '.join(SCENARIOS)}")


def without(spec: FleetSpec, tiers: Iterable[str]) -> FleetSpec:
    """The fleet without L1, L2 or both."""
    gone = set(tiers)
    return replace(
        spec,
        l1_bytes=0.0 if "l1" in gone else spec.l1_bytes,
        l2_bytes=0.0 if "l2" in gone else spec.l2_bytes,
    )


def as_measured(spec: FleetSpec, measured: Calibration) -> FleetSpec:
    return replace(spec, speed=measured.speed, l2_read_bytes_s=measured.l2_bytes_s, l2_latency_s=measured.l2_latency_s)


@contextmanager
def _quiet() -> Iterator[None]:
    """The core warns its operator of what the experiment asks for, such as tiers that a strategy does not see."""
    logger = logging.getLogger("tierserve.routing")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _uncollected() -> Iterator[None]:
    """A run keeps millions of objects and makes hardly any cycles: looking for those is a fifth of its time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
