"""Speeds from the tables and from a measurement."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from app.errors import SettingsError
from app.sim.hardware import GPUS, MODELS, calibrated, speed_of


def test_every_gpu_runs_the_small_model_and_bigger_ones_are_quicker() -> None:
    speeds = [speed_of(name, "llama-3.2-3b") for name in ("L4", "L40S", "H100")]
    assert len(GPUS) >= 5
    for slower, faster in pairwise(speeds):
        assert faster.prefill_s(0, 8000) < slower.prefill_s(0, 8000)
        assert faster.step_s < slower.step_s


def test_prefill_grows_faster_than_linearly_and_counts_what_is_cached_as_context_only() -> None:
    speed = speed_of("L40S", "llama-3.1-8b")
    assert speed.prefill_s(0, 20_000) > 2 * speed.prefill_s(0, 10_000)
    assert speed.prefill_s(10_000, 10_000) < speed.prefill_s(0, 20_000)
    whole = speed.prefill_s(0, 10_000) + speed.prefill_s(10_000, 10_000) - speed.prefill_fixed_s
    assert speed.prefill_s(0, 20_000) == pytest.approx(whole)


def test_a_models_kv_is_what_its_shape_says() -> None:
    assert MODELS["llama-3.1-8b"].kv_bytes == 128 * 1024


@pytest.mark.parametrize(("gpu", "model"), [("none", "llama-3.1-8b"), ("L4", "none")])
def test_an_unknown_name_is_refused(gpu: str, model: str) -> None:
    with pytest.raises(SettingsError, match="unknown"):
        speed_of(gpu, model)


def measurement(path: Path, **changed: object) -> Path:
    """As `tierserve bench ttft --json` writes it, with the figures of a machine that is known."""
    rows: list[dict[str, object]] = [
        {
            "tokens": tokens,
            "cold_s": 0.1 + tokens / 250,
            "l2_s": 0.2 + 0.03 + hit / 10_000,
            "l1_s": 0.2 + hit / 40_000,
            "l0_s": 0.2,
            "hit_tokens": hit,
            "full_chunk_tokens": hit,
            "l2_speed_up": 10.0,
            **changed,
        }
        for tokens in range(500, 3001, 500)
        for hit in [tokens - tokens % 64]
    ]
    path.write_text(json.dumps({"bench": "ttft", "rows": rows, "pool": None, "goals": [], "settings": {}, "seed": 1}))
    return path


def test_speeds_come_from_a_measurement(tmp_path: Path) -> None:
    base = speed_of("L40S", "llama-3.1-8b")
    found = calibrated(measurement(tmp_path / "ttft.json"), base)
    assert found.speed.prefill_s(0, 2000) == pytest.approx(8.1, rel=0.02)
    assert found.speed.l1_bytes_s == pytest.approx(40_000 * base.kv_bytes, rel=0.02)
    assert found.l2_bytes_s == pytest.approx(10_000 * base.kv_bytes, rel=0.02)
    assert found.l2_latency_s == pytest.approx(0.03, rel=0.05)


def test_a_measurement_without_tiers_is_refused_with_its_reason(tmp_path: Path) -> None:
    path = measurement(tmp_path / "ttft.json", l1_s=None, l2_s=None, full_chunk_tokens=None)
    with pytest.raises(SettingsError, match="without L1 or L2"):
        calibrated(path, speed_of("L40S", "llama-3.1-8b"))


def test_rows_of_very_few_lengths_still_make_speeds(tmp_path: Path) -> None:
    path = measurement(tmp_path / "ttft.json")
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, "rows": whole["rows"][:1]}))
    found = calibrated(path, speed_of("L40S", "llama-3.1-8b"))
    assert found.speed.prefill_token_s > 0
    assert found.l2_bytes_s > 0


@pytest.mark.parametrize("text", ["", "[]", '{"rows": []}', '{"rows": [{"tokens": 5}]}'])
def test_a_file_that_is_no_measurement_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ttft.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match="bench ttft"):
        calibrated(path, speed_of("L40S", "llama-3.1-8b"))
