"""The benchmarks against a scripted endpoint: that they send what they should and report what came back."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app.bench import agents, concurrency, dialogue, sharing, ttft
from app.bench.load import progress_bars, read_records
from app.bench.target import Target
from app.bench.ttft_result import Options
from app.errors import ServingError
from tests.bench.load.sse import Script, SseServer


class Caching:
    """Answers like a server with a cache: what it has seen under a salt is hit."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, body: dict[str, Any]) -> Script:
        salt, total, hit, text = body.get("cache_salt", ""), 0, 0, ""
        for message in body["messages"]:
            text += message["content"]
            total += 10
            hit = total if f"{salt}/{text}" in self.seen else hit
            self.seen.add(f"{salt}/{text}")
        usage = {"prompt_tokens": total, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": hit}}
        return Script(usage=usage)


def test_ttft_asks_an_endpoint_without_tiers_twice(scripted: SseServer, target: Target) -> None:
    scripted.answer = Caching()
    with progress_bars() as bars:
        result = ttft.run(target, Options((100, 200), 2), bars, "c")
    phases = [record.phase for record in result.records]
    assert phases == ["warm-up"] * 4 + ["cold", "l0", "l0", "l0"] * 4
    assert [(row["tokens"], row["hit_tokens"]) for row in result.figures["rows"]] == [(100, 10), (200, 10)]


def test_a_failed_request_ends_a_series(scripted: SseServer, target: Target) -> None:
    scripted.answer = lambda body: Script(status=500)
    with progress_bars() as bars, pytest.raises(ServingError, match="status 500"):
        ttft.run(target, Options((100,), 1), bars, "c")


def test_dialogue_is_held_and_replayed(scripted: SseServer, target: Target) -> None:
    scripted.answer = Caching()
    with progress_bars() as bars:
        result = dialogue.run(target, dialogue.Dialogue((64, 128), 8, 2), bars, "c")
    assert [record.phase for record in result.records[:4]] == [dialogue.FIRST] * 2 + [dialogue.REPLAY] * 2
    assert [row["replay_hit_tokens"] for row in result.figures["rows"]] == [10, 30]
    assert result.figures["total"]["tokens"] == 192


def test_alone_nothing_is_shared(scripted: SseServer, target: Target) -> None:
    scripted.answer = Caching()
    load = agents.load_of(target.prompts(1), agents.Agents(2, 3, 40, 10, 8, 8, 4), 2, 1)
    with progress_bars() as bars:
        result = sharing.run(target, load, bars, "c")
    summaries = result.summaries
    assert summaries["alone"].hit_ratio == 0.0
    assert summaries["shared"].hit_ratio is not None
    assert summaries["shared"].hit_ratio > 0.5
    assert summaries["shared, first step"].requests == 2
    assert summaries["shared, later steps"].requests == 4
    assert [record.index for record in result.records] == list(range(12))
    assert set(result.figures["ratios"]) == {"ttft_median", "ttft_p90", "e2e_median", "requests_per_s"}


def test_a_rate_rises_until_too_few_are_in_time(scripted: SseServer, target: Target) -> None:
    scripted.answer = lambda body: Script(first_after_s=0.05 * scripted.open_now)
    rising = concurrency.Rising(40, 10, 2, first_rate=16, step_s=0.5, fewest=6, ttft_target_s=0.2)
    with progress_bars() as bars:
        result = concurrency.run(target, rising, bars, "c", alone=False)
    rows = result.figures["rows"]
    assert [row["rate"] for row in rows] == [16 * 2**step for step in range(len(rows))]
    assert rows[-1]["goodput_share"] < 0.5
    assert all(row["goodput_share"] >= 0.5 for row in rows[:-1])
    assert result.figures["goodput_max_rps"]["shared"] == max(row["goodput_rps"] for row in rows)


def test_the_command_prints_one_object_and_writes_its_files(
    scripted: SseServer, target: Target, tmp_path: Path
) -> None:
    scripted.answer = Caching()
    options = ["--url", scripted.url, "--model", "m", "--tokenizer", "here", "--tokens", "100", "--rounds", "1"]
    done = CliRunner().invoke(ttft.ttft, [*options, "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    whole = json.loads(done.stdout)
    assert whole["bench"] == "ttft"
    assert whole["command"] == "tierserve bench ttft --tokens 100 --rounds 1 --model m --tokenizer here"
    assert json.loads((tmp_path / "ttft.json").read_text()) == whole
    assert len(read_records(tmp_path / "ttft.parquet")) == 8
