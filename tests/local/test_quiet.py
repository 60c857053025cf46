"""Of what Ray prints, only the paragraph about a dead process is kept back."""

from typing import Any

import pytest
from ray._private import worker

from app.local.quiet import quiet_raylet


def test_what_ray_says_of_a_dead_process_is_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(worker, "print_to_stdstream", lambda data, ignore_prefix: shown.append(data["lines"]))
    quiet_raylet()
    for line in ("A worker died or was killed while executing a task ...", "2 workers were killed: out of memory"):
        worker.print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    assert shown == [["2 workers were killed: out of memory"]]
