"""The command line: JSON as agreed, text, scenarios, and tables written into a page."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from app import cli
from app.commands.simulate import command
from app.sim import report


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, ["--replicas", "4", "--requests", "60", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def trace(path: Path) -> Path:
    rows = [
        {"timestamp": 500 * at, "input_length": 1500, "output_length": 20, "hash_ids": [0, at // 2 + 1, at + 1000]}
        for at in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_trace_gives_the_agreed_json(tmp_path: Path) -> None:
    found = json.loads(run("--trace", str(trace(tmp_path / "t.jsonl")), "--load", "0.5", "--json"))
    assert set(found["policies"]) >= {"kv_aware", "prefix_aware", "session", "round_robin", "dynamo", "ray_pow2"}
    for row in found["policies"].values():
        assert {"ttft_mean_s", "ttft_p90_s", "hit_ratio", "imbalance"} <= set(row)
        assert row["requests"] == 40


def test_the_same_seed_gives_the_same_json() -> None:
    once = run("--mix", "rag", "--policy", "kv_aware", "--policy", "ray_pow2", "--json")
    assert once == run("--mix", "rag", "--policy", "kv_aware", "--policy", "ray_pow2", "--json")


def test_tiers_can_be_left_out_and_things_happen() -> None:
    arguments = ("--mix", "agent", "--policy", "kv_aware", "--json")
    without = json.loads(run(*arguments, "--without", "l1", "--without", "l2"))["policies"]["kv_aware"]
    assert without["hit_l1"] == without["hit_l2"] == 0
    dead = json.loads(run(*arguments, "--scenario", "node-death", "--per-node", "2"))
    assert dead["scenario"] == "node-death"


def test_text_names_each_policy() -> None:
    assert "kv_aware" in run("--mix", "chat", "--policy", "kv_aware")


def test_without_a_workload_it_says_what_to_give() -> None:
    result = CliRunner().invoke(command, ["--replicas", "4"])
    assert result.exit_code == 2
    assert "--trace FILE or --mix NAME" in result.output


def test_sections_are_written_between_their_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "GRID_REPLICAS", (2,))
    monkeypatch.setattr(report, "GRID_LOADS", (0.5,))
    monkeypatch.setattr(report, "SCALING_REPLICAS", (2,))
    monkeypatch.setattr(report, "SCALING_REQUESTS", 40)
    names = ("grid", "sensitivity", "mixes", "scaling")
    page = tmp_path / "page.md"
    page.write_text("before\n" + "".join(f"<!-- begin {name} -->\nstale text\n<!-- end {name} -->\n" for name in names))
    file = str(trace(tmp_path / "t.jsonl"))
    chosen = ("--policy", "kv_aware", "--policy", "prefix_aware", "--policy", "session", "--policy", "ray_pow2")
    for name in names:
        run("--trace", file, "--write", str(page), "--section", name, *chosen)
    text = page.read_text()
    assert text.startswith("before\n")
    assert "stale text" not in text
    assert text.count("<!-- end") == 4
    assert "| hot-change |" in text
    assert re.search(r"\| 2 × 0\.5 \| \w+ / \w+ \| ray_pow2 \|", text)


def test_it_is_one_of_the_commands() -> None:
    result = CliRunner().invoke(cli.group, ["simulate", "--help"])
    assert "simulated fleet" in result.output
