"""A run that is told to stop says at once what it waits for; told again it ends without waiting. Nothing is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from app.local.run import _waited_for

# A run whose serving never comes to an end, with a child that holds a segment and does not listen to SIGTERM.
PROGRAM = """
import mmap, signal, subprocess, sys, time
from pathlib import Path
from app.local import run as runs
from app.local.serve_file import load_serve_file

HOLD = '''
import mmap, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    held = mmap.mmap(file.fileno(), 4096)
print("holding", flush=True)
signal.pause()
'''
runs._stop_serving = lambda names: time.sleep(600)
run = runs.LocalRun(load_serve_file(Path(sys.argv[1])), lambda line: print(line, flush=True))
child = subprocess.Popen([sys.executable, "-c", HOLD, sys.argv[2]], stdout=subprocess.PIPE)
child.stdout.readline()
try:
    print(child.pid, flush=True)
    signal.pause()
except KeyboardInterrupt:
    run.__exit__(None, None, None)
print("the end", flush=True)
"""


@pytest.fixture
def segment() -> Iterator[Path]:
    path = Path(f"/dev/shm/tierserve-test-run-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def run(root: Path, segment: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", PROGRAM, str(root / "serve_configs" / "local.yaml"), str(segment)]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_a_second_ctrl_c_ends_everything_at_once(run: "subprocess.Popen[str]", segment: Path) -> None:
    assert run.stdout is not None
    child = psutil.Process(int(run.stdout.readline()))
    try:
        assert segment.exists()
        run.send_signal(signal.SIGINT)
        said = run.stdout.readline()
        assert said.startswith("Stopping")
        assert "Ctrl-C again stops at once" in said
        assert child.is_running()
        run.send_signal(signal.SIGINT)
        rest, _ = run.communicate(timeout=60)
    finally:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    assert "at once: what was under way is lost" in rest.splitlines()[0]
    assert rest.splitlines()[-1] == "the end"
    assert not segment.exists()


@pytest.mark.parametrize(("connections", "told"), [(1, "1 connection is open"), (3, "3 connections are open")])
def test_it_says_how_many_are_waited_for(connections: int, told: str) -> None:
    assert told in _waited_for(connections)
    assert told not in _waited_for(0)
