"""What a starting replica does is read from the marks in its log, and said when it changes."""

from pathlib import Path

import pytest

from app.local import progress
from app.local.progress import deployment_progress, replica_stages


def log(logs: Path, name: str, text: str) -> Path:
    (logs / "serve").mkdir(exist_ok=True)
    path = logs / "serve" / f"replica_tierserve_engine_{name}.log"
    path.write_text(text)
    return path


def test_the_stage_is_the_last_mark(tmp_path: Path) -> None:
    log(tmp_path, "a", "Started initializing replica\n... Using executor class Uni ...\n")
    log(tmp_path, "b", "Started initializing replica\n")
    log(tmp_path, "c", "nothing that we know")
    log(tmp_path, "d", "Started initializing replica\nStarted vLLM engine\nFinished initializing replica\n")
    assert replica_stages(tmp_path) == [
        "1: vLLM's engine process imports and loads weights",
        "2: attaching to L1",
        "4: ready",
    ]


def test_a_replica_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    log(tmp_path, "a", "Started initializing replica\nGraceful shutdown complete; replica exiting.\n")
    log(tmp_path, "b", "Started initializing replica\n")
    assert replica_stages(tmp_path) == ["2: attaching to L1"]


def test_no_logs_yet(tmp_path: Path) -> None:
    assert replica_stages(tmp_path) == []


def test_a_log_that_vanishes_is_passed_over(tmp_path: Path) -> None:
    log(tmp_path, "a", "Started initializing replica")
    (tmp_path / "serve" / "replica_x_engine_y.log").symlink_to(tmp_path / "nowhere")
    assert replica_stages(tmp_path) == ["1: attaching to L1"]


def test_only_changes_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_TICK_S", 0.0)
    said: list[str] = []
    steps = iter(["", "", "Started initializing replica", "Started initializing replica", "Started vLLM engine", None])

    def done() -> bool:
        text = next(steps)
        if text:
            log(tmp_path, "a", text)
        return text is None

    deployment_progress(done, said.append, tmp_path)
    assert [line.split(" s  ")[1] for line in said] == ["replicas import vLLM", "1: attaching to L1", "1: engine up"]


def test_crashes_are_said_when_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_TICK_S", 0.0)
    said: list[str] = []
    crashes = iter([["it crashed"], []])
    left = iter([False, False, True])
    deployment_progress(lambda: next(left), said.append, tmp_path, lambda: next(crashes))
    assert [line.split(" s  ")[1] for line in said] == ["it crashed", "replicas import vLLM"]
