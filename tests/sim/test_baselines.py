"""Each peer's rule decides as its formula says, on cases worked out by hand."""

import random
from array import array

import pytest

from app.routing.core import RoutingCore
from app.routing.kv_events import Batch, BlockStored
from app.routing.policy import Replica, Request
from app.routing.prompt import Prompt, chain
from app.sim.baselines.indexed import Indexed
from app.sim.gauges import Gauge, Watching
from app.sim.policies import core_maker

BLOCK = 64


class Small:
    """Three replicas on two nodes."""

    def __init__(self, policy: str) -> None:
        self.core: RoutingCore = core_maker(policy)(lambda: 0.0, random.Random(1), BLOCK)
        self.core.update_replicas([Replica(f"r{number}", f"n{number % 2}") for number in range(3)])
        self.made = 0

    def request(self, *names: int) -> Request:
        self.made += 1
        tokens = array("I", [name for name in names for _ in range(BLOCK)])
        prompt = Prompt("tokens", "sim", "", (chain(tokens.tobytes(), 1),), (4 * len(tokens),))
        return Request(f"q{self.made}", prompt, None, tokens)

    def put(self, slot: int, *names: int, running: bool = False) -> None:
        """A prompt that was sent to this replica, and is over unless it runs."""
        request, name = self.request(*names), f"r{slot}"
        self.core.choose(request)
        self.core.settled(request.id, name)
        self.core.accepted(request.id, name)
        if not running:
            self.core.ended(request.id, name)

    def picks(self, *names: int, times: int = 12) -> set[str]:
        found = set()
        for _ in range(times):
            request = self.request(*names)
            best = self.core.choose(request).best
            assert best is not None
            found.add(best.replica)
            self.core.settled(request.id, None)
        return found


def test_ray_affinity_begins_at_a_tenth_of_the_prompt() -> None:
    fleet = Small("ray_prefix")
    for slot in range(3):
        fleet.put(slot, *range(100 + 10 * slot, 108 + 10 * slot))
    assert fleet.picks(110, *range(50, 59)) == {"r1"}
    assert len(fleet.picks(110, *range(50, 90))) == 3


def test_production_stack_piles_on_the_warm_pod_unless_load_counts() -> None:
    for policy, expected in (("stack_prefixaware", {"r1"}), ("stack_loadaware", {"r0", "r2"})):
        fleet = Small(policy)
        fleet.put(1, 1, 2)
        for number in range(5):
            fleet.put(1, 10 + number, running=True)
        assert fleet.picks(1, 2, 3, times=30) == expected


def test_sglang_leaves_the_best_match_when_the_gap_is_over_64() -> None:
    fleet = Small("sglang_cache_aware")
    fleet.put(1, 1, 2)
    assert fleet.picks(1, 2) == {"r1"}
    assert "r1" in fleet.picks(1, 3, 4, 5, 6, 7, 8, times=40), "a match under 0.3 is no match: the least loaded"
    for number in range(65):
        fleet.put(1, 10 + number, running=True)
    assert fleet.picks(1, 2) == {"r0", "r2"}


def test_aibrix_takes_the_least_loaded_when_the_gap_is_over_8() -> None:
    fleet = Small("aibrix_prefix_cache")
    fleet.put(1, 1, 2)
    assert fleet.picks(1, 2) == {"r1"}
    for number in range(9):
        fleet.put(1, 10 + number, running=True)
    assert fleet.picks(1, 2) == {"r0", "r2"}


def held(fleet: Small, slot: int, *names: int) -> None:
    policy = fleet.core.policy
    assert isinstance(policy, Indexed)
    for one in range(3):
        events = [BlockStored(list(names), None, fleet.request(*names).tokens or [], BLOCK)] if one == slot else []
        policy.l0.apply(one, 0, Batch(0.0, [*events]))


def test_dynamo_weighs_credit_against_active_blocks() -> None:
    fleet = Small("dynamo")
    held(fleet, 1, 1, 2, 3)
    assert fleet.picks(1, 2, 3, 4) == {"r1"}
    # Two blocks in flight cost 2 for prefill and 2 for decode: more than a credit of three.
    fleet.put(1, 8, 9, running=True)
    assert fleet.picks(1, 2, 3, 4) == {"r0", "r2"}


@pytest.mark.parametrize("policy", ["llm_d_approximate", "llm_d_precise"])
def test_llm_d_weighs_prefix_usage_and_queue(policy: str) -> None:
    fleet = Small(policy)
    gauges = {f"r{slot}": Gauge(0, 0.0) for slot in range(3)}
    assert isinstance(fleet.core.policy, Watching)
    fleet.core.policy.watch(lambda name: gauges[name])
    if policy == "llm_d_precise":
        held(fleet, 1, 1, 2, 3)
    else:
        fleet.put(1, 1, 2, 3)
    assert fleet.picks(1, 2, 3) == {"r1"}
    gauges["r1"] = Gauge(9, 1.0)
    assert fleet.picks(1, 9, 9, 9) == {"r0", "r2"}


def test_a_dead_replica_is_never_picked() -> None:
    for policy in ("ray_prefix", "aibrix_prefix_cache", "llm_d_approximate", "stack_prefixaware"):
        fleet = Small(policy)
        fleet.put(1, 1, 2)
        fleet.core.replica_died("r1")
        assert fleet.picks(1, 2) <= {"r0", "r2"}
        fleet.core.check_integrity()
