"""Looking at one replica of each step finds what scoring every replica by the documented formula would find."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from app.routing.policy import CacheReport, Request
from app.routing.prefix_aware import LOAD_WEIGHT, RECENT_WEIGHT, PrefixAware
from app.routing.prompt import read_prompt
from tests.routing.conftest import Fleet

HOT_USES, SHARED_USES = 2.0, 0.5
PIECE = 256


def random_fleet(seed: int, replicas: int) -> Fleet:
    """Prompts that branch from each other, sent anywhere; some over, some lost from their caches."""
    rng = random.Random(seed)
    fleet = Fleet("prefix_aware", replicas, hot_uses=HOT_USES, shared_uses=SHARED_USES)
    for _ in range(rng.randrange(6 * replicas)):
        fleet.now += rng.random()
        name, _ = fleet.choose(body(rng))
        where = rng.choice(fleet.names)
        fleet.core.settled(name, where)
        fleet.core.accepted(name, where)
        if rng.random() < 0.1:
            fleet.core.completed(name, CacheReport(1000, computed=1000), where)
        if rng.random() < 0.3:
            fleet.core.first_token(name, where)
        if rng.random() < 0.5:
            fleet.core.ended(name, where)
    return fleet


def body(rng: random.Random) -> dict[str, str]:
    return {"model": "m", "prompt": "".join(rng.choice("ab") * PIECE * rng.randrange(1, 4) for _ in range(4))}


def formula(fleet: Fleet, request: Request) -> dict[str, float]:
    """The score of each replica, as docs/routing.md has it."""
    policy, load = fleet.core.policy, fleet.core.load
    assert isinstance(policy, PrefixAware)
    pieces = request.prompt.pieces
    levels = policy.tree.match(pieces, fleet.now)
    scores = {}
    for name in fleet.names:
        slot = fleet.core.roster.slot(name)
        assert slot is not None
        horizon = policy._horizon.get(slot, -1)
        held = max((one.depth for one in levels if one.holders >> slot & 1 and one.last_use > horizon), default=0)
        score, start = float(len(pieces)), 0
        for at, one in enumerate(levels):
            per_holder = one.heat / one.holders.bit_count()
            uses = SHARED_USES if any(deeper.forks for deeper in levels[at:]) else HOT_USES
            discount = 1.0 if per_holder <= uses else uses / per_holder
            length, start = one.depth - start, one.depth
            score -= length if one.depth <= held else length * (1.0 - discount)
        scores[name] = score + LOAD_WEIGHT * load.weight(slot) + RECENT_WEIGHT * load.recent(slot)
    return scores


@given(st.integers(0, 1 << 32), st.integers(1, 70))
@settings(max_examples=150, deadline=None)
def test_the_best_by_formula_is_chosen(seed: int, replicas: int) -> None:
    fleet = random_fleet(seed, replicas)
    rng = random.Random(seed + 1)
    for number in range(5):
        fleet.now += 3.0 * rng.random()
        fleet.core.load.expire()
        request = Request(f"asked{number}", read_prompt(body(rng)))
        scores = formula(fleet, request)
        ranking = fleet.core.choose(request)
        for choice in ranking.choices:
            assert abs(choice.score - scores[choice.replica]) < 1e-6
        assert ranking.choices[0].score <= min(scores.values()) + 1e-5
        assert [one.score for one in ranking.choices] == sorted(one.score for one in ranking.choices)
    fleet.core.check_integrity()
