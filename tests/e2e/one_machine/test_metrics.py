"""What Prometheus reads: the router's decisions, the engines' own figures, and the state of every tier."""

import json
import re
import subprocess

import httpx

from tests.e2e.conftest import TIERSERVE, Served, wait_for

MODEL = "smollm2-135m-instruct"
WANTED = {
    "tierserve_routing_decisions_total",
    "tierserve_routing_state",
    "tierserve_cache_healthy",
    "tierserve_cache_bytes",
    "tierserve_pool_breaker",
    "tierserve_pool_threads",
    "vllm_prompt_tokens_total",
}


def test_every_part_says_how_it_is(served: Served, http: httpx.Client) -> None:
    said = json.loads(subprocess.check_output([*TIERSERVE, "status", "--json"]))
    [url] = said["metrics"]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    assert http.post("/v1/chat/completions", json=body).status_code == 200

    def read() -> str:
        text = httpx.get(url, timeout=30).text
        found = {line.partition("{")[0].removeprefix("ray_") for line in text.splitlines()}
        return text if found >= WANTED else ""

    text = wait_for(f"all of {sorted(WANTED)}", read, 60)
    assert value(text, "cache_healthy") == 1
    assert value(text, "pool_breaker", state="closed") == 1
    assert value(text, "pool_breaker", state="open") == 0
    assert value(text, "cache_bytes", tier="l1", kind="capacity") > 0
    assert value(text, "cache_replicas") == 2


def value(text: str, name: str, **labels: str) -> float:
    """Of the one series with these labels."""
    lines = [line for line in text.splitlines() if line.startswith(f"ray_tierserve_{name}{{")]
    wanted = [f'{label}="{what}"' for label, what in labels.items()]
    [found] = [line for line in lines if all(re.search(rf"[{{,]{label}[,}}]", line) for label in wanted)]
    return float(found.rpartition(" ")[2])
