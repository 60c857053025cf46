"""Real `serve deploy` to a real Ray of two nodes on this machine, with API keys, and one pool between their caches.

`ray start --address` on the same host makes a second Ray node: its replica has a cache server, so an L1, of its own.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest
import yaml

from app.cache_report import REPLICA_HEADER, ROUTING_HEADER
from app.client import connect
from app.demo import PROMPT
from app.tiers.cache_server import free_ports
from tests.e2e.conftest import ROOT, disconnect, wait_for

MODEL = "smollm2-135m-instruct"
KEYS = {"acme": "acme-secret-key", "globex": "globex-secret-key"}
READY_WITHIN_S = 420
BIN = Path(sys.executable).parent


@dataclass
class Cluster:
    """Two Ray nodes as child processes, and the application that `serve deploy` put on them."""

    directory: Path
    home: Path
    port: int
    dashboard: int
    gcs: int
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        # `serve` and the SDK are turned away by a cluster with token authentication unless they ask for it.
        return {**os.environ, "TIERSERVE_HOME": str(self.home), "RAY_AUTH_MODE": "token", "GLOBEX_KEY": KEYS["globex"]}

    def start_node(self, *arguments: str) -> None:
        log = (self.directory / f"node{len(self.nodes)}.log").open("wb")
        agent, grpc, runtime, metrics = free_ports(4)
        command = [str(BIN / "ray"), "start", *arguments, "--block", "--num-cpus", "1", "--disable-usage-stats"]
        command += ["--object-store-memory", str(100 << 20), f"--dashboard-agent-listen-port={agent}"]
        command += [f"--dashboard-agent-grpc-port={grpc}", f"--runtime-env-agent-port={runtime}"]
        command += [f"--metrics-export-port={metrics}"]
        self.nodes.append(
            subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
        )

    def serve(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "serve"), *arguments, "--address", f"http://127.0.0.1:{self.dashboard}"]
        return subprocess.run(command, env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=120)

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self.directory.glob("node*.log"))

    def stop(self) -> None:
        tree = [child for node in self.nodes for child in _tree(node.pid)]
        for node in self.nodes:
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGTERM)
        psutil.wait_procs(tree, timeout=20)
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for node in self.nodes:
            node.kill()
            node.wait(20)


def _tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def deploy_file(directory: Path, port: int) -> Path:
    """local.yaml for two nodes: a replica each, an API key per tenant, one of them in the environment."""
    document = yaml.safe_load((ROOT / "serve_configs" / "local.yaml").read_text())
    document["http_options"]["port"] = port
    args = document["applications"][0]["args"]
    # Each node has one CPU: two replicas do not fit on one.
    args["models"][0] |= {"num_cpus": 0.6, "replicas": 2, "l1": {"gib": 0.5, "chunk_tokens": 64}, "l0": {"gib": 0.5}}
    args["models"][0]["routing"] = {"strategy": "kv_aware", "debug": True}
    args["auth"] = {
        "api_keys": [{"tenant": "acme", "key": KEYS["acme"]}, {"tenant": "globex", "key_env": "GLOBEX_KEY"}]
    }
    path = directory / "deploy.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="module")
def cluster(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("deploy")
    port, dashboard, gcs, client = free_ports(4)
    cluster = Cluster(directory, home, port, dashboard, gcs)
    temp = Path(f"/tmp/ts-{uuid4().hex[:8]}")  # short: Ray's socket paths end at 107 characters
    try:
        cluster.start_node(
            "--head",
            f"--port={gcs}",
            f"--dashboard-port={dashboard}",
            f"--ray-client-server-port={client}",
            f"--temp-dir={temp}",
        )
        wait_for("the dashboard answers", lambda: _answers(dashboard), 120)
        cluster.start_node(f"--address=127.0.0.1:{gcs}")
        deployed = cluster.serve("deploy", str(deploy_file(directory, port)))
        assert deployed.returncode == 0, deployed.stdout + deployed.stderr
        wait_for("the application runs", lambda: _running(cluster), READY_WITHIN_S, every_s=2)
        yield cluster
    finally:
        disconnect()
        cluster.stop()
        subprocess.run(["rm", "-rf", str(temp)], check=False)


def _answers(port: int) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}/api/version").status_code in (200, 401)
    return False


def _running(cluster: Cluster) -> bool:
    status = cluster.serve("status")
    state = (yaml.safe_load(status.stdout) or {}).get("applications", {}).get("tierserve", {}).get("status")
    assert state != "DEPLOY_FAILED", status.stdout + cluster.logs()
    return bool(state == "RUNNING")


def ask(cluster: Cluster, key: str | None, replica: str | None = None, **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers |= {REPLICA_HEADER: replica} if replica else {}
    content = fields.pop("content", PROMPT.read_text()[:4000])
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
    return httpx.post(f"{cluster.url}/v1/chat/completions", json=body | fields, headers=headers, timeout=300)


def test_a_key_is_needed(cluster: Cluster) -> None:
    for key in (None, "not-a-key-at-all"):
        refused = ask(cluster, key, content="hello")
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert httpx.get(f"{cluster.url}/v1/models").status_code == 401
    assert httpx.get(f"{cluster.url}/health").status_code == 200
    for key in KEYS.values():
        assert ask(cluster, key, content="hello").status_code == 200


def test_tenants_do_not_share_a_cache(cluster: Cluster) -> None:
    text = PROMPT.read_text()[1000:3500]

    def cached(key: str) -> int:
        response = ask(cluster, key, content=text, cache_salt="same")
        return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(KEYS["acme"]) == 0
    assert cached(KEYS["acme"]) > 0
    assert cached(KEYS["globex"]) == 0


def replicas(cluster: Cluster) -> tuple[str, str]:
    import ray

    from app.tiers.node_cache import node_caches

    connect("tierserve", f"127.0.0.1:{cluster.gcs}")
    caches = ray.get([cache.status.remote() for cache in node_caches()])
    assert len(caches) == 2, caches
    (first,), (second,) = (cache["replicas"] for cache in caches)
    return first, second


def test_nodes_share_a_prefix_through_the_pool_alone(cluster: Cluster) -> None:
    client = connect("tierserve", f"127.0.0.1:{cluster.gcs}")
    first, second = replicas(cluster)
    key, salt = KEYS["acme"], uuid4().hex
    cold = ask(cluster, key, first, cache_salt=salt).json()
    there = client.on_replica(first)
    wait_for("L2 has taken every chunk", lambda: there.cache_status()["cache"]["l2_stores_pending"] == 0, 60)
    shared = ask(cluster, key, second, cache_salt=salt).json()
    found = shared["usage"]["prompt_tokens_details"]
    full_chunks = shared["usage"]["prompt_tokens"] // 64 * 64
    assert found["replica"] == second
    assert (found["l0_tokens"], found["l1_tokens"], found["l2_tokens"]) == (0, 0, full_chunks), found
    assert shared["choices"][0]["message"] == cold["choices"][0]["message"]
    uncached = ask(cluster, key, second, cache_salt=uuid4().hex).json()
    assert uncached["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert uncached["choices"][0]["message"] == shared["choices"][0]["message"]


def explained(response: httpx.Response) -> dict[str, dict[str, Any]]:
    """What the router expected of each replica."""
    ranking = json.loads(response.headers[ROUTING_HEADER])
    assert ranking["strategy"] == "kv_aware"
    assert ranking["degraded"] is None, ranking["degraded"]
    return {choice["replica"]: choice for choice in ranking["choices"]}


def test_kv_aware_knows_what_each_tier_holds(cluster: Cluster) -> None:
    """Of a prompt that one replica computed, it expects L0 there and L2 on the other node, to the token."""
    first, second = replicas(cluster)
    salt, content = uuid4().hex, PROMPT.read_text()[500:3500]
    cold = ask(cluster, KEYS["acme"], first, cache_salt=salt, content=content).json()["usage"]
    chunks = cold["prompt_tokens"] // 64 * 64
    blocks = cold["prompt_tokens"] // 32 * 32
    body = {"cache_salt": salt, "content": content + " And then?"}

    def expected() -> tuple[int, int, int] | None:
        """The router's ranking of a prompt that goes on from the first; pinned, so that it changes nothing there."""
        choices = explained(ask(cluster, KEYS["acme"], first, **body))
        there, other = choices[first], choices[second]
        return (there["match"], other["match"], other["l2"]) if other["l2"] >= chunks else None

    found = wait_for("the router knows what the pool holds", expected, 60, every_s=1)
    assert found is not None
    assert found[0] >= blocks
    assert found[1] == 0
    hit = ask(cluster, KEYS["acme"], second, cache_salt=salt, content=content).json()["usage"]["prompt_tokens_details"]
    assert (hit["replica"], hit["l2_tokens"]) == (second, chunks)


def test_a_restarted_router_learns_what_the_replicas_hold(cluster: Cluster) -> None:
    """The process that routes is killed; the next one asks engines and cache servers, and expects hits again."""
    import ray

    first, _ = replicas(cluster)
    salt, content = uuid4().hex, PROMPT.read_text()[2000:4500]
    ask(cluster, KEYS["acme"], first, cache_salt=salt, content=content)
    actors = ray.util.list_named_actors(all_namespaces=True)
    (name,) = (actor["name"] for actor in actors if "#ingress#" in actor["name"])
    ray.kill(ray.get_actor(name, namespace="serve"), no_restart=True)

    def known() -> bool:
        response = ask(cluster, KEYS["acme"], first, cache_salt=salt, content=content)
        if response.status_code != 200 or json.loads(response.headers[ROUTING_HEADER])["degraded"] is not None:
            return False
        return bool(explained(response)[first]["match"] > 0)

    assert wait_for("the new router expects the hit", known, 120, every_s=1)


def test_status_of_a_cluster(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "app.cli", "status", "--address", f"127.0.0.1:{cluster.gcs}", "--json"]
    done = subprocess.run(command, env=cluster.environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [cache["healthy"] for cache in report["caches"]] == [True, True]
    assert len({cache["node_id"] for cache in report["caches"]}) == 2
