"""L1, L2 and the links between: what stays, what goes, and what contention costs."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sim.events import Publisher
from app.sim.pipe import Pipe
from app.sim.spec import FleetSpec
from app.sim.storage import Storage
from app.sim.tiers import NodeCache, SharedPool

BLOCK = 64


def test_transfers_queue_up_behind_each_other() -> None:
    pipe = Pipe(100.0)
    assert pipe.send(1.0, 100) == 2.0
    assert pipe.send(1.0, 50) == 2.5
    assert pipe.backlog_s(2.0) == 0.5
    assert pipe.send(10.0, 100) == 11.0
    assert pipe.carried == 250


def test_l1_evicts_a_fifth_of_what_it_holds_at_four_fifths_of_its_room_ends_of_prompts_first() -> None:
    cache = NodeCache(10)
    cache.store([1, 2, 3, 4])
    assert cache.store([11, 12, 13, 14]) == ([11, 12, 13, 14], [])
    cache.touch([1, 2])
    assert cache.store([21])[1] == [4]
    assert cache.store([22])[1] == [3]
    assert (1 in cache, 14 in cache) == (True, True)


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True), max_size=30))
def test_tiers_never_hold_more_than_their_room_and_say_what_left(prompts: list[list[int]]) -> None:
    cache, pool = NodeCache(20), SharedPool(20)
    for tier_is, held in ((cache, set[int]()), (pool, set[int]())):
        for at, names in enumerate(prompts):
            new, gone = cache.store(names) if tier_is is cache else pool.store(0, names, float(at))
            held |= set(new)
            held -= set(gone)
            assert all((name in tier_is) == (name in held) for name in range(41))
            tier_is.check_integrity()


class Later:
    def __init__(self) -> None:
        self.actions: list[tuple[float, Callable[[float], None]]] = []

    def __call__(self, at: float, action: Callable[[float], None]) -> None:
        self.actions.append((at, action))

    def run(self) -> None:
        for at, action in sorted(self.actions, key=lambda one: one[0]):
            action(at)
        self.actions.clear()


@pytest.fixture
def later() -> Later:
    return Later()


def storage(spec: FleetSpec, later: Later) -> Storage:
    return Storage(spec, BLOCK, 4096, Publisher(None, BLOCK), later)


def test_another_node_finds_in_l2_what_was_written_only_after_it_arrived(spec: FleetSpec, later: Later) -> None:
    tiers, names = storage(spec, later), list(range(100))
    tiers.store(0, 0, names, 0.0)
    assert (tiers.load(0, 0, names, 0.0).l1, tiers.load(1, 2, names, 0.0).l2) == (100, 0)
    later.run()
    found = tiers.load(1, 2, names, 5.0)
    assert (found.l1, found.l2) == (0, 100)
    assert found.there_at == pytest.approx(5.0 + spec.l2_latency_s + tiers.l2_read_bytes / spec.l2_read_bytes_s)
    assert tiers.load(1, 2, names, 9.0).l1 == 100
    tiers.check_integrity()


def test_a_run_ends_at_the_first_gap(spec: FleetSpec, later: Later) -> None:
    tiers = storage(spec, later)
    tiers.store(0, 0, list(range(20)), 0.0)
    found = tiers.load(0, 0, [*range(15), 99, 16], 1.0)
    assert (found.l1, found.l2) == (15, 0)


def test_what_is_sooner_computed_is_not_loaded(spec: FleetSpec, later: Later) -> None:
    tiers = storage(replace(spec, l2_read_bytes_s=1e6, l1_bytes=0), later)
    tiers.store(0, 0, list(range(50)), 0.0)
    later.run()
    assert tiers.load(1, 2, list(range(50)), 100.0).there_at == 100.0


def test_a_write_link_too_far_behind_drops_stores(spec: FleetSpec, later: Later) -> None:
    tiers = storage(replace(spec, l2_write_bytes_s=1e6), later)
    tiers.store(0, 0, list(range(20)), 0.0)
    tiers.store(0, 0, list(range(100, 120)), 0.0)
    assert tiers.dropped == 20


def test_a_dead_node_loses_l1_and_not_l2(spec: FleetSpec, later: Later) -> None:
    tiers, names = storage(spec, later), list(range(50))
    tiers.store(0, 0, names, 0.0)
    later.run()
    tiers.node_died(0)
    found = tiers.load(0, 0, names, 5.0)
    assert (found.l1, found.l2) == (0, 50)
