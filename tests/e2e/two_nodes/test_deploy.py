"""Real `serve deploy` to a real Ray of two nodes on this machine, with API keys, and one pool between their caches.

`ray start --address` on the same host makes a second Ray node: its replica has a cache server, so an L1, of its own.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import yaml

from app.bench.load import read_records
from app.bench.two_nodes import TwoNodes, spread_over_two, two_nodes
from app.cache_report import REPLICA_HEADER, ROUTING_HEADER
from app.client import connect
from app.demo import PROMPT
from tests.e2e.conftest import ROOT, TIERSERVE, disconnect, wait_for

MODEL = "smollm2-135m-instruct"
KEYS = {"acme": "acme-secret-key", "globex": "globex-secret-key"}


def document() -> dict[str, Any]:
    """local.yaml for two nodes: a replica each, an API key per tenant, one of them in the environment."""
    changed = spread_over_two(
        yaml.safe_load((ROOT / "serve_configs" / "local.yaml").read_text()),
        {"routing": {"strategy": "kv_aware", "debug": True}},
    )
    changed["applications"][0]["args"]["auth"] = {
        "api_keys": [{"tenant": "acme", "key": KEYS["acme"]}, {"tenant": "globex", "key_env": "GLOBEX_KEY"}]
    }
    return changed


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[TwoNodes]:
    with two_nodes(document(), {"TIERSERVE_HOME": str(home), "GLOBEX_KEY": KEYS["globex"]}) as cluster:
        yield cluster
        disconnect()


def ask(cluster: TwoNodes, key: str | None, replica: str | None = None, **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers |= {REPLICA_HEADER: replica} if replica else {}
    content = fields.pop("content", PROMPT.read_text()[:4000])
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
    return httpx.post(f"{cluster.url}/v1/chat/completions", json=body | fields, headers=headers, timeout=300)


def test_a_key_is_needed(cluster: TwoNodes) -> None:
    for key in (None, "not-a-key-at-all"):
        refused = ask(cluster, key, content="hello")
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert httpx.get(f"{cluster.url}/v1/models").status_code == 401
    assert httpx.get(f"{cluster.url}/health").status_code == 200
    for key in KEYS.values():
        assert ask(cluster, key, content="hello").status_code == 200


def test_tenants_do_not_share_a_cache(cluster: TwoNodes) -> None:
    text = PROMPT.read_text()[1000:3500]

    def cached(key: str) -> int:
        response = ask(cluster, key, content=text, cache_salt="same")
        return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(KEYS["acme"]) == 0
    assert cached(KEYS["acme"]) > 0
    assert cached(KEYS["globex"]) == 0


def replicas(cluster: TwoNodes) -> tuple[str, str]:
    import ray

    from app.tiers.node_cache import node_caches

    connect("tierserve", cluster.address)
    caches = ray.get([cache.status.remote() for cache in node_caches()])
    assert len(caches) == 2, caches
    (first,), (second,) = (cache["replicas"] for cache in caches)
    return first, second


def test_nodes_share_a_prefix_through_the_pool_alone(cluster: TwoNodes) -> None:
    client = connect("tierserve", cluster.address)
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


def test_kv_aware_knows_what_each_tier_holds(cluster: TwoNodes) -> None:
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


def test_a_restarted_router_learns_what_the_replicas_hold(cluster: TwoNodes) -> None:
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


def test_status_of_a_cluster(cluster: TwoNodes) -> None:
    command = [*TIERSERVE, "status", "--address", cluster.address, "--json"]
    done = subprocess.run(command, env=dict(cluster.environment), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [cache["healthy"] for cache in report["caches"]] == [True, True]
    assert len({cache["node_id"] for cache in report["caches"]}) == 2


def test_bench_measures_every_tier_of_two_nodes(cluster: TwoNodes, tmp_path: Path) -> None:
    command = [*TIERSERVE, "bench", "ttft", "--url", cluster.url, "--address", cluster.address]
    command += ["--api-key", KEYS["acme"], "--tokens", "300", "--tokens", "700", "--rounds", "1", "--repeats", "1"]
    command += ["--json", "--out", str(tmp_path)]
    done = subprocess.run(command, env=dict(cluster.environment), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    whole = json.loads(done.stdout)
    rows = {row["tokens"]: row for row in whole["rows"]}
    assert {tokens: row["hit_tokens"] for tokens, row in rows.items()} == {300: 256, 700: 640}
    assert all(row["hit_tokens"] == row["full_chunk_tokens"] for row in rows.values())
    # Two cores shared with other work: only the order of things is certain enough to assert.
    assert all(row["cold_s"] > max(row["l2_s"], row["l1_s"], row["l0_s"]) for row in rows.values())
    assert whole["answers_equal"]
    assert whole["pool"]["read_bytes_s"] > 0
    records = read_records(tmp_path / "ttft.parquet")
    assert all(record.prompt_tokens == record.planned_tokens for record in records)
    assert KEYS["acme"] not in (tmp_path / "ttft.json").read_text()
