"""Real engines. Each folder here shares one application: two at once do not fit into the memory of a small machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import psutil
import pytest
import yaml

from app.client import Client
from app.tiers.cache_server import free_ports

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
TIERSERVE = (sys.executable, "-m", "app.cli")
READY_WITHIN_S = 420
STOP_WITHIN_S = 90


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if ROOT / "tests" / "e2e" in item.path.parents:
            item.add_marker(pytest.mark.e2e)


def wait_for(what: str, condition: Callable[[], T], deadline_s: float, every_s: float = 0.1) -> T:
    """Poll until `condition` gives something true; fail the test, naming `what`, after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while True:
        if value := condition():
            return value
        assert time.monotonic() < end, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(every_s)


@dataclass
class Served:
    """A running `tierserve serve`."""

    process: subprocess.Popen[bytes]
    log: Path
    home: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def tree(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def pids_of(self, command: str) -> set[int]:
        found = set()
        for process in self.tree():
            with suppress(psutil.NoSuchProcess):
                if command in " ".join(process.cmdline()):
                    found.add(process.pid)
        return found


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """TIERSERVE_HOME of this test session: its model, its L2 pool, its notes."""
    path = tmp_path_factory.mktemp("home")
    before = os.environ.get("TIERSERVE_HOME")
    os.environ["TIERSERVE_HOME"] = str(path)
    yield path
    os.environ.pop("TIERSERVE_HOME")
    if before is not None:
        os.environ["TIERSERVE_HOME"] = before


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    """Of the application that the folder's own `served` runs."""
    with httpx.Client(base_url=served.url, timeout=180) as client:
        yield client


def serve_file(directory: Path, **changes: object) -> Path:
    """serve_configs/local.yaml with changes to its one model, as a file in `directory`."""
    document = yaml.safe_load((ROOT / "serve_configs" / "local.yaml").read_text())
    document["applications"][0]["args"]["models"][0] |= changes
    path = directory / "serve.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def start(home: Path, log: Path, *arguments: str) -> Served:
    port = free_ports(1)[0]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*TIERSERVE, "serve", *arguments, "--port", str(port)],
            cwd=ROOT,
            env={**os.environ, "TIERSERVE_HOME": str(home), "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    served = Served(process, log, home, port)

    def ready() -> bool:
        assert process.poll() is None, f"serve ended with {process.returncode}:\n{served.output()}"
        return "Ready: " in served.output()

    try:
        wait_for("the application is ready", ready, READY_WITHIN_S, every_s=0.5)
    except BaseException:
        stop(served)
        raise
    return served


def stop(served: Served) -> int:
    """Ctrl-C, as a terminal sends it: to the whole process group. Returns the exit code."""
    with suppress(ProcessLookupError):
        os.killpg(served.process.pid, signal.SIGINT)
    return served.process.wait(STOP_WITHIN_S)


def stored(sdk: Client) -> None:
    """Wait until nothing is on its way from L1 to L2 any more."""
    wait_for("L2 has taken every chunk", lambda: sdk.cache_status()["cache"]["l2_stores_pending"] == 0, 60)


def disconnect() -> None:
    """Leave the Ray cluster this process has joined. Serve remembers its controller beyond that: it forgets it too."""
    import ray
    from ray.serve import context

    ray.shutdown()
    context._set_global_client(None)


def leftovers(pids: set[int]) -> set[str]:
    """What processes with these pids left outside their home. Names tell owners, so another run does not matter."""
    segments = {path.name for path in Path("/dev/shm").glob("lmcache_l1_pool_tierserve-*")}
    directories = {path.name for path in Path("/tmp").glob("tierserve-*-*")}
    return {name for name in segments | directories if any(f"tierserve-{pid}-" in name for pid in pids)}
