"""One `tierserve serve`, in a process of its own, as a person would run it."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Served, leftovers, start, stop


@pytest.fixture(scope="package")
def served(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """serve_configs/local.yaml, two replicas; and afterwards the proof that Ctrl-C left nothing."""
    running = start(home, tmp_path_factory.mktemp("serve") / "serve.log")
    yield running
    tree = running.tree()
    code = stop(running)
    alive = [process for process in tree if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert not alive, f"processes left: {alive}\n{running.output()}"
    assert code == 0, running.output()
    assert not leftovers({running.process.pid, *(process.pid for process in tree)})
    assert not list((home / "run").glob("*.json"))
