"""One plain `vllm serve` for each replica, requests round robin over them.

The client that sends the load does the round robin: a front of its own would cost time that this system is not to be
charged for, so it has neither a proxy nor an ingress. The server is vLLM's module: the `vllm` command looks for a
package named vllm, which the CPU build is not.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from app.bench.load import Endpoint
from app.bench.systems.engines import Engines
from app.errors import ServingError
from app.local.leftovers import end, remove_segments, segments_of
from app.local.port import TEMP_PREFIX
from app.local.signals import undisturbed
from app.tiers.cache_server import free_ports

NAME = "vllm-round-robin"
_MODULE = "vllm.entrypoints.launchers.api_server.entry"
_READY_S, _EVERY_S, _GRACE_S = 420.0, 0.5, 20.0


@contextmanager
def started(engines: Engines) -> Iterator[tuple[Endpoint, ...]]:
    """One endpoint for each replica. Raises ServingError if one does not come up."""
    with tempfile.TemporaryDirectory(prefix=f"{TEMP_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as directory:
        servers: list[_Server] = []
        try:
            for port in free_ports(engines.replicas):
                servers.append(_Server(engines, port, Path(directory)))  # noqa: PERF401 - one that fails must not lose the others
            for server in servers:
                server.wait_until_ready()
            yield tuple(Endpoint(server.url, engines.model.id, name=NAME) for server in servers)
        finally:
            with undisturbed():
                _stop(servers)


class _Server:
    """One server process and its engine's."""

    def __init__(self, engines: Engines, port: int, directory: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = directory / f"{port}.log"
        command = [sys.executable, "-m", _MODULE, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--model", str(engines.directory), "--served-model-name", engines.model.id]
        environment = {**os.environ, **engines.environment, "TMPDIR": str(directory), "VLLM_CONFIGURE_LOGGING": "1"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *flags(engines.arguments)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = self._log.read_text(errors="replace")[-3000:]
                raise ServingError(f"`vllm serve` did not start within {_READY_S:.0f} s:\n{said}")
            time.sleep(_EVERY_S)

    def _answers(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        return False

    def tree(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            return [process, *process.children(recursive=True)]
        return []


def _stop(servers: list[_Server]) -> None:
    """A server ends its engine on SIGTERM; what is left after that is killed, and its segments removed."""
    tree = [process for server in servers for process in server.tree()]
    segments = segments_of(tree)
    for server in servers:
        server.process.terminate()
    end(tree, grace_s=_GRACE_S)
    for server in servers:
        server.process.wait(_GRACE_S)
    remove_segments(segments)


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Engine arguments as the command line has them: `{"enforce_eager": True}` is `--enforce-eager`."""
    written: list[str] = []
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            written.append(f"--{option}" if value else f"--no-{option}")
        else:
            written += [f"--{option}", str(value)]
    return written
