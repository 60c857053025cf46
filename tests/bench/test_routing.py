"""The offline measurement runs and its JSON has the agreed shape. Figures are compared with each other only."""

import json

import pytest
from click.testing import CliRunner

from app.bench import routing as bench

KEYS = {
    "ours_us",
    "ray_tree_us",
    "ray_actor_us",
    "ours_1024_us",
    "ours_1m_chars_us",
    "kv_aware_128k_ms",
    "bound_mb",
    "peak_mb",
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the prompts, no Ray, few inserts: seconds instead of a minute."""
    monkeypatch.setattr(bench, "PROMPTS", 300)
    whole = bench.run
    monkeypatch.setattr(bench, "run", lambda **given: whole(actor=False, inserts=20_000, **given))


def test_the_json_has_the_agreed_keys_and_plausible_order(small: None) -> None:
    result = CliRunner().invoke(bench.routing, ["--json"])
    assert result.exit_code == 0, result.output
    offline = json.loads(result.output)["offline"]
    assert set(offline) == KEYS
    assert offline["ours_us"] * 10 < offline["ray_tree_us"]
    assert offline["ours_1024_us"] < 3 * offline["ours_us"]
    assert offline["ours_1m_chars_us"] < 400 * offline["ours_us"]
    assert 0 < offline["peak_mb"] <= offline["bound_mb"]


def test_a_live_runner_adds_its_table(small: None) -> None:
    rows = {"prefix_aware": {"ttft_mean_s": 1.0, "ttft_p90_s": 2.0, "hit_tokens": 3.0}}
    assert bench.run(live=lambda: rows)["live"] == rows


def test_an_unknown_strategy_is_named_before_anything_is_started(small: None) -> None:
    result = CliRunner().invoke(bench.routing, ["--live", "--strategy", "fastest"])
    assert result.exit_code == 2
    assert "fastest" in result.output
    assert "ray_power_of_two" in result.output
