"""A taken port is one line that says who holds it and what helps; what a killed run left is waited for."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.errors import MachineError
from app.local import port as ports
from app.local.port import check_port, left_by_dead_run, open_connections
from app.local.record import RunRecord

LISTEN = """
import socket, sys
with socket.socket() as server:
    server.bind(("127.0.0.1", int(sys.argv[1])))
    server.listen()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Callable[[int, int], "subprocess.Popen[bytes]"]]:
    """Starts a process that holds a port, as one of a run with the given process id."""
    started = []

    def start(port: int, of: int) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-c", LISTEN, str(port)],
            env={**os.environ, "TMPDIR": f"{tmp_path}/tierserve-{of}-x1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def refusal(port: int) -> str:
    with pytest.raises(MachineError) as caught:
        check_port("127.0.0.1", port)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_a_killed_run_left_is_waited_for(
    unused_port: int, dead_pid: int, listener: Callable[[int, int], "subprocess.Popen[bytes]"]
) -> None:
    holder = listener(unused_port, dead_pid)
    assert [process.pid for process in left_by_dead_run(unused_port)] == [holder.pid]
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        holder.kill()

    check_port("127.0.0.1", unused_port, say)
    assert said == [f"Port {unused_port} is held by what a killed `tierserve serve` left; waiting for its end ..."]


def test_leftovers_that_do_not_end_are_named(
    unused_port: int,
    dead_pid: int,
    listener: Callable[[int, int], "subprocess.Popen[bytes]"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "_LEFTOVERS_S", 0.0)
    holder = listener(unused_port, dead_pid)
    assert f"end them with `kill {holder.pid}`" in refusal(unused_port)


def test_a_living_run_is_named(unused_port: int, listener: Callable[[int, int], "subprocess.Popen[bytes]"]) -> None:
    listener(unused_port, os.getpid())
    assert left_by_dead_run(unused_port) == []
    note = RunRecord(os.getpid(), "x", "127.0.0.1:1", f"http://127.0.0.1:{unused_port}", ()).write()
    assert json.loads(note.read_text())["pid"] == os.getpid()
    assert f"`tierserve serve` (process {os.getpid()}) listens there; stop it with Ctrl-C" in refusal(unused_port)
    assert f"`make serve PORT={unused_port + 1}`" in refusal(unused_port)


def test_a_free_port_passes_and_a_taken_one_names_the_next(unused_port: int) -> None:
    check_port("127.0.0.1", unused_port)
    with socket.socket() as other:
        other.bind(("127.0.0.1", unused_port))
        other.listen()
        with pytest.raises(MachineError, match=f"port {unused_port} .* `make serve PORT={unused_port + 1}`"):
            check_port("127.0.0.1", unused_port)


def test_a_port_whose_last_connection_just_ended_is_free(unused_port: int) -> None:
    """A second `make serve` must not wait for TIME_WAIT."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", unused_port))
        server.listen()
        with socket.create_connection(("127.0.0.1", unused_port)):
            server.accept()[0].close()  # the server's end closes first: it keeps TIME_WAIT
    check_port("127.0.0.1", unused_port)


def test_a_host_that_is_not_here() -> None:
    with pytest.raises(
        MachineError, match=r"port 80 on 192\.0\.2\.1 cannot be used .* is no IPv4 address of this machine"
    ):
        check_port("192.0.2.1", 80)


def test_open_connections_are_counted(unused_port: int) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", unused_port))
        server.listen()
        assert open_connections(unused_port) == 0
        with socket.create_connection(("127.0.0.1", unused_port)), server.accept()[0]:
            assert open_connections(unused_port) == 1
