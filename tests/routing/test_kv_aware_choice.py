"""Looking at a few replicas of each kind finds what looking at all of them would find."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.routing.policy import Request
from app.routing.prompt import read_prompt
from tests.routing.test_kv_aware import BLOCK, PROMPT, TEXT, KvFleet

SPAN = 256


def random_fleet(seed: int, replicas: int) -> KvFleet:
    """Parts of one prompt in L0, L1 and L2 and in flight, and other prompts waiting anywhere."""
    rng = random.Random(seed)
    fleet = KvFleet(replicas)
    for name in fleet.names:
        if rng.random() < 0.3:
            fleet.holds(name, PROMPT[: rng.randrange(BLOCK, SPAN, BLOCK)])
    for node in ("n0", "n1"):
        if rng.random() < 0.5:
            fleet.tier("l1", node, PROMPT[: rng.randrange(64, SPAN)])
    if rng.random() < 0.5:
        fleet.tier("l2", "pool", PROMPT[: rng.randrange(64, SPAN)])
    for number in range(rng.randrange(3 * replicas)):
        tokens = PROMPT[: rng.randrange(SPAN)] if rng.random() < 0.2 else [number] * rng.randrange(1, 4096)
        name, _ = fleet.choose({"model": "m", "prompt": f"{number} " * 300}, None, tokens)
        where = rng.choice(fleet.names)
        fleet.core.settled(name, where)
        fleet.core.accepted(name, where)
        if rng.random() < 0.3:
            fleet.core.first_token(name, where)
    # What was given lately fades; what is in flight does not.
    fleet.now += 3600.0
    return fleet


def asking(tokens: list[int]) -> Request:
    return Request("asked", read_prompt(TEXT), None, tokens)


def judged(fleet: KvFleet, asked: list[int]) -> tuple[float, dict[str, float]]:
    """The score of the one that is chosen, and of each replica as the formula has it: what it scores when it is the
    only one there is, and once more what it has to do beyond the best. Nothing here is hot, so all of it is charged.
    """
    request = asking(asked)
    everyone = fleet.policy.rank(request, fleet.core.roster.live).best
    assert everyone is not None
    scores, services = {}, {}
    for replica in fleet.names:
        alone = fleet.policy.rank(request, fleet.core.roster.mask([replica])).best
        assert alone is not None
        assert alone.prefill_s is not None
        assert alone.load_s is not None
        scores[replica], services[replica] = alone.score, alone.prefill_s + alone.load_s
    fleet.core.check_integrity()
    best = min(services.values())
    return everyone.score, {name: scores[name] + services[name] - best for name in scores}


@given(st.integers(0, 1 << 32), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_among_few_replicas_the_best_of_all_is_chosen(seed: int, replicas: int) -> None:
    chosen, scores = judged(random_fleet(seed, replicas), PROMPT[:SPAN])
    assert chosen <= min(scores.values()) + 1e-9


@given(st.integers(0, 1 << 32), st.integers(40, 90))
@settings(max_examples=25, deadline=None)
def test_among_many_it_is_the_best_of_all_too(seed: int, replicas: int) -> None:
    fleet = random_fleet(seed, replicas)
    chosen, scores = judged(fleet, PROMPT[:SPAN])
    assert chosen <= min(scores.values()) + 1e-9


def test_ranking_a_large_fleet_looks_at_few_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet 64 times as large, in which every replica holds another part of the prompt."""
    looks = {}
    for replicas in (16, 1024):
        fleet = KvFleet(replicas)
        for number, name in enumerate(fleet.names):
            fleet.holds(name, PROMPT[: BLOCK * (1 + number % 100)])
        seen: list[int] = []
        weight = fleet.core.load.weight

        def looked_at(slot: int, seen: list[int] = seen, weight: Callable[[int], int] = weight) -> int:
            seen.append(slot)
            return weight(slot)

        monkeypatch.setattr(fleet.core.load, "weight", looked_at)
        fleet.policy.rank(asking(PROMPT), fleet.core.roster.live)
        looks[replicas] = len(seen)
    assert looks[16] > 0
    assert looks[1024] <= 10 * looks[16]
