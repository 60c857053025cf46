"""What native code and Ray print of what we end on purpose is kept back, and nothing else."""

import os
from typing import Any

import pytest
from ray._private import worker

from app.local.quiet import no_native_errors, quiet_raylet


def test_what_ray_says_of_a_dead_process_is_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(worker, "print_to_stdstream", lambda data, ignore_prefix: shown.append(data["lines"]))
    quiet_raylet()
    for line in ("A worker died or was killed while executing a task ...", "2 workers were killed: out of memory"):
        worker.print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    assert shown == [["2 workers were killed: out of memory"]]


def test_what_native_code_prints_is_kept_back_and_later_errors_are_not(capfd: pytest.CaptureFixture[str]) -> None:
    with no_native_errors():
        os.write(2, b"noise\n")
    os.write(2, b"told\n")
    assert capfd.readouterr().err == "told\n"
