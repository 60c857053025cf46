"""What every test may use: a home of its own, free ports, and waiting for a condition instead of for time to pass."""

import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import settings

# No deadline: this machine is shared, and a slow moment is not a failure. The same examples in every run, so that a
# change is blamed for what it did; new ones are for `pytest --hypothesis-profile=explore`.
settings.register_profile("tierserve", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("tierserve")

# A shell starts what it runs in the background deaf to Ctrl-C, which every process below inherits: tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class WaitUntil(Protocol):
    def __call__(self, condition: Callable[[], object], what: str, within_s: float = 10.0) -> None: ...


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """No unit test reads or writes the user's own prepared models, pool or notes; e2e tests use the prepared model."""
    if request.node.get_closest_marker("e2e") is None:
        monkeypatch.setenv("TIERSERVE_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).parents[1]


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def wait_until() -> WaitUntil:
    def wait(condition: Callable[[], object], what: str, within_s: float = 10.0) -> None:
        deadline, tick = time.monotonic() + within_s, threading.Event()
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
            tick.wait(0.01)

    return wait
