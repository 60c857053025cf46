"""Strategies by name, with options that are checked before anything is deployed."""

from collections.abc import Mapping

import pytest

from app.errors import SettingsError
from app.routing.core import RoutingCore
from app.routing.strategies import STRATEGIES


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_has_defaults_and_a_name(strategy: str) -> None:
    assert RoutingCore(strategy).policy.name == strategy


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("prefix_awere", {}, "unknown routing strategy 'prefix_awere': choose one of kv_aware, "),
        ("session", {"point": 3}, "routing strategy session has no option 'point'; it has: points, balance, slack"),
        ("round_robin", {"any": 1}, "routing strategy round_robin has no option 'any'; it has: none"),
        ("kv_aware", {"chunk_tokens": "many"}, "chunk_tokens: expected int, not 'many'"),
        ("kv_aware", {"chunk_tokens": 0}, "chunk_tokens: expected int >= 1, not 0"),
        ("kv_aware", {"base_models": "m"}, "base_models: expected array, not 'm'"),
        ("prefix_aware", {"half_life_s": -3}, "half_life_s: expected float > 0.0, not -3"),
        ("prefix_aware", {"load_weight": float("nan")}, "load_weight: expected float >= 0.0, not nan"),
        ("prefix_aware", {"max_bytes": True}, "max_bytes: expected int, not True"),
        ("session", {"balance": 0.5}, "balance: expected float >= 1.0, not 0.5"),
    ],
)
def test_what_cannot_be_is_refused_by_name(strategy: str, options: Mapping[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        RoutingCore(strategy, dict(options))
    assert str(refused.value).startswith(message)


def test_whole_numbers_serve_where_fractions_may_be() -> None:
    RoutingCore("prefix_aware", {"half_life_s": 3, "load_weight": 0})
    RoutingCore("kv_aware", {"base_models": ["m"]})
