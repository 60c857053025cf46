"""Can the port be listened on? If not, who holds it, and what helps."""

import errno
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from app.errors import MachineError
from app.local.record import living_runs

# A run's processes inherit a TMPDIR that names the process of the run (app.local.run).
TEMP_PREFIX = "tierserve-"
_OWNER = re.compile(rf"/{TEMP_PREFIX}(\d+)-[^/]*$")
# What a killed run leaves ends by itself when Ray finds its driver gone: within 4 s (seen).
_LEFTOVERS_S = 15.0
_LOOK_EVERY_S = 0.2
_LAST_PORT = 65535


def check_port(host: str, port: int, say: Callable[[str], None] | None = None) -> None:
    """Waits, and tells `say`, while what a killed run left still holds `port`.

    Raises:
        MachineError: `port` cannot be listened on.
    """
    error = _trial(host, port)
    if error is not None and error.errno == errno.EADDRINUSE and left_by_dead_run(port):
        if say is not None:
            say(f"Port {port} is held by what a killed `tierserve serve` left; waiting for its end ...")
        until = time.monotonic() + _LEFTOVERS_S
        while (error := _trial(host, port)) is not None and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)
    if error is not None:
        raise MachineError(f"port {port} on {host} cannot be used ({error.strerror}){_remedy(host, port, error)}")


def _trial(host: str, port: int) -> OSError | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def _remedy(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EACCES:
        return ": choose one above 1023, e.g. `make serve PORT=8000`"
    if error.errno != errno.EADDRINUSE:
        return (
            f": {host} is no IPv4 address of this machine: 127.0.0.1 is this machine alone, 0.0.0.0 all its addresses"
        )
    near = port + 1 if port < _LAST_PORT else port - 1
    another = f"choose another, e.g. `make serve PORT={near}`, or http_options.port in a file of yours"
    for run in living_runs():
        if run.url.endswith(f":{port}"):
            here = f"`tierserve serve` (process {run.pid}) listens there"
            return f": {here}; stop it with Ctrl-C or `kill {run.pid}`, or {another}"
    if left := left_by_dead_run(port):
        pids = " ".join(str(process.pid) for process in left)
        return f": a killed `tierserve serve` left processes that do not end; end them with `kill {pids}`, or {another}"
    return f": {another}"


def open_connections(port: int) -> int:
    """How many clients are connected to `port` of this machine."""
    return sum(
        connection.status == psutil.CONN_ESTABLISHED and getattr(connection.laddr, "port", None) == port
        for connection in psutil.net_connections("tcp")
    )


def left_by_dead_run(port: int) -> list[psutil.Process]:
    """Processes that listen on `port` and belong to a run whose own process is gone."""
    found = []
    for connection in psutil.net_connections("tcp"):
        if (
            connection.status == psutil.CONN_LISTEN
            and getattr(connection.laddr, "port", None) == port
            and connection.pid
        ):
            with suppress(psutil.Error):
                process = psutil.Process(connection.pid)
                if _of_dead_run(process.environ().get("TMPDIR", "")):
                    found.append(process)
    return found


def _of_dead_run(temporary: str) -> bool:
    owner = _OWNER.search(temporary)
    return owner is not None and not Path(f"/proc/{owner[1]}").exists()
