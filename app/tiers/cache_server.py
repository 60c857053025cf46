"""One LMCache server as a child process: its command line, its start, its end. No ray, no lmcache import.

absent --start()--> starting --/healthcheck answers--> running --stop() or death--> absent
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from app.errors import ServingError
from app.tiers.cache_spec import CacheEndpoint, CacheSpec
from app.tiers.loopback_http import LOOPBACK

# LMCache prefixes the segment it is told to make.
_SHM_PREFIX = "lmcache_l1_pool_"
_OURS = "tierserve-"

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` ports that were free a moment ago. Held together while choosing, so they differ from each other."""
    with closing_all([socket.socket() for _ in range(count)]) as sockets:
        for sock in sockets:
            sock.bind((host, 0))
        return [sock.getsockname()[1] for sock in sockets]


class closing_all:  # noqa: N801 - a context manager, like contextlib.closing
    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets

    def __enter__(self) -> list[socket.socket]:
        return self._sockets

    def __exit__(self, *_: object) -> None:
        for sock in self._sockets:
            sock.close()


def new_endpoint(host: str = "127.0.0.1", node_host: str = "127.0.0.1") -> CacheEndpoint:
    """Free ports, and a segment name that says which process it belongs to (see `sweep_segments`)."""
    port, http_port, events_port, tier_port, ask_port = free_ports(5, "0.0.0.0")  # free on every address
    return CacheEndpoint(host, port, http_port, events_port, segment_name(port), node_host, tier_port, ask_port)


def segment_name(port: int) -> str:
    """Of the segment of a server of this process: unique on the machine, and tells its owner (`sweep_segments`)."""
    return f"{_OURS}{os.getpid()}-{port}"


def server_command(spec: CacheSpec, at: CacheEndpoint) -> list[str]:
    """The command line. Each flag that is not a plain setting says why it is there."""
    command = [
        *(sys.executable, "-m", "app.tiers.launcher", "server"),
        *("--host", at.host, "--port", str(at.port), "--http-host", at.host, "--http-port", str(at.http_port)),
        *("--chunk-size", str(spec.chunk_tokens), "--l1-size-gb", str(spec.l1_gib)),
        *("--eviction-policy", spec.eviction_policy),
        *("--max-cpu-workers", str(spec.workers), "--max-gpu-workers", str(spec.workers)),
        # `auto` lets each side choose; the default makes a CPU engine's registration hang for 300 s.
        *("--supported-transfer-mode", "auto"),
        *(
            "--server-module",
            json.dumps({"module_path": "app.tiers.server_module", "config": _module_config(spec, at)}),
        ),
        # What is likely to be read again stays in L1 (the default frees every loaded chunk after one use).
        *("--l2-prefetch-policy", "tierserve"),
        # A third of vLLM's own time-out would still be a hang to a person: silent engines are dropped after 30 s.
        *("--worker-reap-timeout-seconds", "30"),
    ]
    if spec.device == "cpu":
        # Shared memory instead of pickle: 82 MB in 0.04 s instead of 0.9 s. It needs the pool allocated at start.
        command += ["--no-l1-use-lazy", "--shm-name", at.shm_name]
    if spec.l2_adapter is not None:
        command += ["--l2-adapter", json.dumps(spec.l2_adapter)]
    return command


def _module_config(spec: CacheSpec, at: CacheEndpoint) -> dict[str, Any]:
    own = {"host": at.host, "port": at.events_port, "chunk_tokens": spec.chunk_tokens}
    return own | {"node_host": at.node_host, "tier_port": at.tier_port, "ask_port": at.ask_port}


def server_environment(spec: CacheSpec) -> dict[str, str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "LMCACHE_TRACK_USAGE": str(spec.usage_stats).lower()}
    if spec.device == "cuda":
        # Ray gives an actor without GPUs an empty list; CUDA IPC needs the node's devices visible to the server.
        environment.pop("CUDA_VISIBLE_DEVICES", None)
    return environment


class CacheServer:
    """One server process. All methods block and must come from one thread; none raises except `start`."""

    def __init__(self, spec: CacheSpec, at: CacheEndpoint, log: Path) -> None:
        self.spec, self.at, self.log = spec, at, log
        self._process: subprocess.Popen[bytes] | None = None
        self._http = httpx.Client(**LOOPBACK)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def spawn(self) -> None:
        """Start the process without waiting for it; its output is appended to `log`."""
        assert not self.alive(), f"server {self.pid} is already running"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                server_command(self.spec, self.at),
                env=server_environment(self.spec),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def start(self, timeout_s: float = START_TIMEOUT_S, sleep: Callable[[float], None] = time.sleep) -> None:
        """Start and wait until it answers.

        Raises:
            ServingError: it ended or did not answer in time; the message carries the end of its log.
        """
        self.spawn()
        deadline = time.monotonic() + timeout_s
        while not self.answers():
            if not self.alive() or time.monotonic() > deadline:
                state = "did not answer" if self.alive() else "ended at once"
                self.stop()
                raise ServingError(f"the L1 cache server {state}; the end of {self.log}:\n{self._log_tail()}")
            sleep(0.1)

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def answers(self, timeout_s: float = 1.0) -> bool:
        with suppress(httpx.HTTPError):
            return self._http.get(f"{self.at.http_url}/healthcheck", timeout=timeout_s).is_success
        return False

    def stop(self) -> None:
        """End the process, gently and then not, and remove what a killed one leaves in /dev/shm."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = None
        remove_segment(self.at.shm_name)

    def _log_tail(self, lines: int = 15) -> str:
        with suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return "(no log)"


def remove_segment(shm_name: str) -> None:
    with suppress(OSError):
        Path(f"/dev/shm/{_SHM_PREFIX}{shm_name}").unlink()


def sweep_segments() -> list[str]:
    """Remove segments whose owner is gone (a node that was killed has nobody to do it). Returns their names."""
    swept = []
    for path in Path("/dev/shm").glob(f"{_SHM_PREFIX}{_OURS}*"):
        owner = path.name.removeprefix(_SHM_PREFIX + _OURS).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with suppress(OSError):
                path.unlink()
                swept.append(path.name)
    return swept
