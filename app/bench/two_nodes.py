"""Ray nodes on this machine with an application on them, started and stopped: two, so that what crosses nodes can be
measured, or one, for a serve file of any application, ours or not.

`ray start --address` on the same host makes a second Ray node: its replica has a cache server, so an L1, of its own.
Between the two lies the L2 pool and nothing else.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from app.errors import ServingError
from app.local.leftovers import end, remove_segments, segments_of
from app.local.run import sweep_stale
from app.local.signals import undisturbed
from app.tiers.cache_server import free_ports

_BIN = Path(sys.executable).parent
_ROOT = Path(__file__).parents[2]
_NODE_UP_S, _READY_S = 120.0, 420.0
_GRACE_S, _NODE_GRACE_S = 20.0, 5.0
# CPUs that a single node says it has: reservations are Ray's, the cores are shared by all processes anyhow.
_PLENTY = 8


@dataclass
class TwoNodes:
    """The running cluster. `address` is for Ray's clients, `url` for HTTP."""

    directory: Path
    environment: Mapping[str, str]
    port: int
    dashboard: int
    gcs: int
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.gcs}"

    def serve(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Ray's own `serve` command against this cluster."""
        command = [str(_BIN / "serve"), *arguments, "--address", f"http://127.0.0.1:{self.dashboard}"]
        return subprocess.run(
            command, env=dict(self.environment), cwd=_ROOT, capture_output=True, text=True, timeout=120
        )

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self.directory.glob("node*.log"))

    def start_node(self, *arguments: str, cpus: int) -> None:
        log = (self.directory / f"node{len(self.nodes)}.log").open("wb")
        agent, grpc, runtime, metrics = free_ports(4)
        command = [str(_BIN / "ray"), "start", *arguments, "--block", f"--num-cpus={cpus}", "--disable-usage-stats"]
        command += ["--object-store-memory", str(100 << 20), f"--dashboard-agent-listen-port={agent}"]
        command += [f"--dashboard-agent-grpc-port={grpc}", f"--runtime-env-agent-port={runtime}"]
        command += [f"--metrics-export-port={metrics}"]
        environment = dict(self.environment)
        self.nodes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))

    def stop(self) -> None:
        """End everything that was started: applications first, so that engines end cleanly. Those that are killed leave
        segments behind, which are removed."""
        tree = [child for node in self.nodes for child in _tree(node.pid)]
        segments = segments_of(tree)
        self._end_applications(tree)
        for node in self.nodes:
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGTERM)
        for node in self.nodes:
            # `ray start` outlives what it has started without reaping it: nobody could see that it has ended.
            node.kill()
            node.wait(_GRACE_S)
        end(tree, grace_s=_NODE_GRACE_S)
        remove_segments(segments)
        sweep_stale()

    def _end_applications(self, tree: list[psutil.Process]) -> None:
        replicas = [process for process in tree if _is_replica(process)]
        if replicas:
            with suppress(subprocess.TimeoutExpired):
                self.serve("shutdown", "--yes")
                psutil.wait_procs(replicas, timeout=_GRACE_S)


def _is_replica(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.name().startswith("ray::ServeRepli")  # cut at 15 characters by the kernel
    return False


def spread_over_two(document: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A serve file's content with its one model as two replicas of which each needs a node of its own."""
    copied: dict[str, Any] = yaml.safe_load(yaml.safe_dump(dict(document)))
    model = copied["applications"][0]["args"]["models"][0]
    # Each node has one CPU: two replicas do not fit on one.
    model |= {"num_cpus": 0.6, "replicas": 2, "l1": {"gib": 0.5, "chunk_tokens": 64}, "l0": {"gib": 0.5}}
    model |= changes or {}
    return copied


@contextmanager
def two_nodes(document: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Iterator[TwoNodes]:
    """Serve `document` (a serve file's content; its port is replaced) until the block ends.

    Raises:
        ServingError: a node or the application did not come up; the message carries what it said.
    """
    with _nodes(document, environment or {}, [1, 1]) as cluster:
        yield cluster


@contextmanager
def one_node(document: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Iterator[TwoNodes]:
    """The same on one node, with room for whatever a serve file reserves: CPUs are not what bounds it here."""
    with _nodes(document, environment or {}, [_PLENTY]) as cluster:
        yield cluster


@contextmanager
def _nodes(document: Mapping[str, Any], environment: Mapping[str, str], cpus: list[int]) -> Iterator[TwoNodes]:
    port, dashboard, gcs, client = free_ports(4)
    sweep_stale()
    with _temporary("tierserve-") as temp, _temporary("tierserve-") as made:
        # A cluster demands a token, and `serve` sends it only if it is told to. What engines put into /tmp is removed.
        inherited = {**os.environ, "RAY_AUTH_MODE": "token", "TMPDIR": str(made), **environment}
        cluster = TwoNodes(made, inherited, port, dashboard, gcs)
        try:
            cluster.start_node(
                "--head",
                f"--port={gcs}",
                f"--dashboard-port={dashboard}",
                f"--ray-client-server-port={client}",
                f"--temp-dir={temp}",
                cpus=cpus[0],
            )
            _wait("the dashboard answers", lambda: _answers(dashboard), _NODE_UP_S, cluster)
            for each in cpus[1:]:
                cluster.start_node(f"--address={cluster.address}", cpus=each)
            _deploy(cluster, document)
            yield cluster
        finally:
            with undisturbed():
                cluster.stop()


@contextmanager
def _temporary(prefix: str) -> Iterator[Path]:
    """Removed when the block ends, or, if this process is killed, by the next run that looks for what others left."""
    path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _deploy(cluster: TwoNodes, document: Mapping[str, Any]) -> None:
    file = cluster.directory / "serve.yaml"
    options = {**document.get("http_options", {}), "host": "127.0.0.1", "port": cluster.port}
    file.write_text(yaml.safe_dump({**document, "http_options": options}))
    done = cluster.serve("deploy", str(file))
    if done.returncode != 0:
        raise ServingError(f"`serve deploy` failed:\n{done.stdout}{done.stderr}")
    _wait("the application runs", lambda: _running(cluster), _READY_S, cluster, every_s=2.0)


def _running(cluster: TwoNodes) -> bool:
    status = cluster.serve("status")
    applications = (yaml.safe_load(status.stdout) or {}).get("applications", {})
    states = [each.get("status") for each in applications.values()]
    if "DEPLOY_FAILED" in states:
        raise ServingError(f"the application did not start:\n{status.stdout}\n{cluster.logs()}")
    return bool(states) and all(state == "RUNNING" for state in states)


def _answers(port: int) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}/api/version").status_code in (200, 401)
    return False


def _wait(what: str, condition: Callable[[], bool], within_s: float, cluster: TwoNodes, every_s: float = 0.2) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        dead = [node.returncode for node in cluster.nodes if node.poll() is not None]
        if dead or time.monotonic() > deadline:
            raise ServingError(f"not within {within_s:.0f} s: {what} (ended nodes: {dead})\n{cluster.logs()}")
        time.sleep(every_s)


def _tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []
