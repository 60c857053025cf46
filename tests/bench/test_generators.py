"""How generators are found and read; that they work is tested on real engines."""

import json
import sys
from pathlib import Path

import pytest

from app.bench.generators import GENERATORS, Generator, Job, Told, run_one

VLLM, GUIDELLM, AIPERF = GENERATORS


def job(out: Path) -> Job:
    return Job("http://127.0.0.1:1", "m", "/tokenizer", 6, out)


def test_one_that_is_not_there_is_said_not_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for generator in (GUIDELLM, AIPERF):
        outcome = run_one(generator, job(tmp_path))
        assert (outcome.version, outcome.succeeded, outcome.error) == ("", None, "not on PATH")


def test_the_version_is_what_the_tool_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "guidellm"
    tool.write_text("#!/bin/sh\necho 'guidellm version: 0.8.1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert GUIDELLM.version() == "0.8.1"


def test_one_that_fails_says_how(tmp_path: Path) -> None:
    failing = Generator(
        "x", lambda: "1", lambda job: [sys.executable, "-c", "raise SystemExit('no server')"], VLLM.read
    )
    outcome = run_one(failing, job(tmp_path))
    assert outcome.succeeded is None
    assert "ended with 1" in outcome.error
    assert "no server" in outcome.error


def test_reads_what_each_reports(tmp_path: Path) -> None:
    said = "Successful requests:                     6\nMedian TTFT (ms):                        120.50\n"
    assert VLLM.read(said, job(tmp_path)) == Told(6, 0.1205)
    metrics = {"request_totals": {"successful": 5}, "time_to_first_token_ms": {"successful": {"median": 80.0}}}
    (tmp_path / "guidellm.json").write_text(json.dumps({"benchmarks": [{"metrics": metrics}]}))
    assert GUIDELLM.read("", job(tmp_path)) == Told(5, 0.08)
    report = tmp_path / "aiperf" / "run" / "profile_export_aiperf.json"
    report.parent.mkdir(parents=True)
    report.write_text(json.dumps({"request_count": {"avg": 6.0}, "time_to_first_token": {"p50": 90.0}}))
    assert AIPERF.read("", job(tmp_path)) == Told(6, 0.09)
