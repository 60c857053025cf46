"""The first slice, whole: two real engines behind one endpoint, with every client that is promised."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import openai
import pytest

from app.cache_report import CACHE_HEADER, REPLICA_HEADER
from app.client import Client, connect
from app.demo import PROMPT
from app.errors import ServingError
from tests.e2e.conftest import ROOT, TIERSERVE, Served, disconnect, stored, wait_for

MODEL = "smollm2-135m-instruct"
LONG = PROMPT.read_text()[:3000]


@pytest.fixture(scope="module")
def sdk(served: Served) -> Iterator[Client]:
    yield connect("tierserve")
    disconnect()


@pytest.fixture(scope="module")
def replicas(sdk: Client) -> list[str]:
    names: list[str] = sdk.cache_status()["cache"]["replicas"]
    assert len(names) == 2
    return names


def chat_body(content: str, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0}
    return {**body, **fields}


def details(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["usage"]["prompt_tokens_details"]
    return found


# -- what an OpenAI client expects ------------------------------------------------------------------------------------


def test_lists_its_model(http: httpx.Client) -> None:
    assert [model["id"] for model in http.get("/v1/models").json()["data"]] == [MODEL]
    assert http.get(f"/v1/models/{MODEL}").json()["id"] == MODEL
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("prompt", ["Once upon a time", [504, 1980, 253], ["One", "Two and two"], [[504, 1980], [253]]])
def test_completes_text_token_ids_and_batches(http: httpx.Client, prompt: Any) -> None:
    response = http.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 3})
    assert response.status_code == 200, response.text
    prompts = len(prompt) if isinstance(prompt[0], (list, str)) and not isinstance(prompt, str) else 1
    assert len(response.json()["choices"]) == prompts
    usage = response.json()["usage"]
    found = usage["prompt_tokens_details"]
    assert found["cached_tokens"] + found["computed_tokens"] == usage["prompt_tokens"]


def test_tokenizes_and_back(http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"model": MODEL, "prompt": "a ledger"}).json()["tokens"]
    text = http.post("/detokenize", json={"model": MODEL, "tokens": tokens}).json()["prompt"]
    assert text == "a ledger"


def test_openai_package(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Why is the sky blue?"}], max_tokens=8, temperature=0
    )
    assert answer.choices[0].message.content
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Why is the sky blue?"}],
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(raw.parse())
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens is not None
    extra = usage.prompt_tokens_details.model_extra
    assert extra is not None
    assert usage.prompt_tokens_details.cached_tokens + extra["computed_tokens"] == usage.prompt_tokens
    assert raw.headers["x-tierserve-replica"] == extra["replica"]
    told = dict(part.split("=") for part in raw.headers["x-tierserve-cache"].split(", "))
    assert (int(told["l0"]), int(told["computed"])) == (extra["l0_tokens"], extra["computed_tokens"])
    assert all(model.created > 0 for model in client.models.list())


async def test_openai_package_async(served: Served) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        answers = await asyncio.gather(
            *(client.completions.create(model=MODEL, prompt=f"Number {n} is", max_tokens=4) for n in range(8))
        )
    assert all(answer.choices[0].text for answer in answers)


def test_openai_package_gets_its_own_errors(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.completions.create(model=MODEL, prompt="word " * 6000, max_tokens=1)


def test_curl(served: Served) -> None:
    command = ["curl", "-sS", f"{served.url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    done = subprocess.run([*command, "-d", json.dumps(chat_body("Hello"))], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_vllm_bench_serve(served: Served) -> None:
    model = next((served.home / "models").glob("smollm2-*"))
    # What `vllm bench serve` runs. The command itself looks for a package named vllm, which the CPU build is not.
    program = (
        "import argparse; from vllm.benchmarks.serve import add_cli_args, main;"
        "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
    )
    command = [sys.executable, "-c", program, "--base-url", served.url]
    command += ["--model", MODEL, "--tokenizer", str(model), "--dataset-name", "random", "--num-prompts", "6"]
    command += ["--random-input-len", "96", "--random-output-len", "8", "--request-rate", "inf"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Successful requests:                     6" in done.stdout, done.stdout[-3000:]


# -- the tiers, and what is said of them ------------------------------------------------------------------------------


def test_reports_each_tier_exactly(http: httpx.Client, sdk: Client, replicas: list[str]) -> None:
    first, second = replicas
    body = chat_body(LONG, cache_salt=uuid4().hex)

    def ask(replica: str) -> tuple[dict[str, Any], str]:
        response = http.post("/v1/chat/completions", json=body, headers={REPLICA_HEADER: replica})
        found = details(response)
        assert response.headers[REPLICA_HEADER] == replica == found["replica"]
        numbers = [found[f"{tier}_tokens"] for tier in ("l0", "l1", "l2", "computed")]
        assert response.headers[CACHE_HEADER] == "l0={}, l1={}, l2={}, computed={}".format(*numbers)
        assert sum(numbers) == response.json()["usage"]["prompt_tokens"]
        return found, response.json()["choices"][0]["message"]["content"]

    cold, answer = ask(first)
    prompt = cold["computed_tokens"]
    assert cold["cached_tokens"] == 0
    stored(sdk)
    from_l0, again = ask(first)
    assert from_l0["l0_tokens"] == from_l0["cached_tokens"] == prompt // 32 * 32 - (32 if prompt % 32 == 0 else 0)
    from_l1, there = ask(second)
    assert from_l1["l1_tokens"] == from_l1["cached_tokens"] == prompt // 64 * 64
    stored(sdk)
    for replica in replicas:
        sdk.on_replica(replica).clear_caches()
    from_l2, later = ask(second)
    assert from_l2["l2_tokens"] == from_l2["cached_tokens"] == prompt // 64 * 64
    assert answer == again == there == later


def test_salts_do_not_share(http: httpx.Client) -> None:
    one, other = uuid4().hex, uuid4().hex
    details(http.post("/v1/chat/completions", json=chat_body(LONG, cache_salt=one)))
    assert details(http.post("/v1/chat/completions", json=chat_body(LONG, cache_salt=one)))["cached_tokens"] > 0
    assert details(http.post("/v1/chat/completions", json=chat_body(LONG, cache_salt=other)))["cached_tokens"] == 0


def test_routing_explains_itself_and_keeps_a_prompt_where_it_is(http: httpx.Client) -> None:
    salt = uuid4().hex
    served_by = set()
    for _ in range(4):
        response = http.post("/v1/chat/completions", json=chat_body(LONG, cache_salt=salt))
        served_by.add(response.headers[REPLICA_HEADER])
        why = json.loads(response.headers["x-tierserve-routing"])
        assert why["strategy"] == "prefix_aware"
        assert why["choices"][0]["replica"] == response.headers[REPLICA_HEADER]
    assert len(served_by) == 1


async def test_many_at_once_are_all_answered_and_accounted_for(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url, timeout=300) as client:
        prompts = [LONG[start : start + 1500] for start in range(0, 1200, 300)]
        bodies = [chat_body(prompts[n % len(prompts)], cache_salt="many") for n in range(16)]
        responses = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))
    answers: dict[str, set[str]] = {}
    for body, response in zip(bodies, responses, strict=True):
        found = details(response)
        assert found["cached_tokens"] + found["computed_tokens"] == response.json()["usage"]["prompt_tokens"]
        content = body["messages"][0]["content"]
        answers.setdefault(content, set()).add(response.json()["choices"][0]["message"]["content"])
    assert all(len(texts) == 1 for texts in answers.values()), answers


def test_a_client_that_leaves_leaves_nothing_behind(served: Served, sdk: Client, replicas: list[str]) -> None:
    for _ in range(3):
        with httpx.Client(timeout=60) as client:
            body = {**chat_body("Count to a thousand."), "max_tokens": 400, "stream": True}
            with client.stream("POST", f"{served.url}/v1/chat/completions", json=body) as response:
                next(response.iter_lines())
    for replica in replicas:
        client_there = sdk.on_replica(replica)
        wait_for("the request is dropped", partial(_idle, client_there), 60)


def test_many_that_leave_a_full_server_leave_nothing_behind(served: Served, sdk: Client, replicas: list[str]) -> None:
    """More than the replicas take at once, cut within seconds of each other, mostly before their first piece: each
    would go on for minutes."""
    body = {**chat_body("Count to a million."), "max_tokens": 3000, "ignore_eos": True, "stream": True}
    rng = random.Random(1)

    async def leave(client: httpx.AsyncClient) -> None:
        with suppress(TimeoutError, httpx.HTTPError):
            async with (
                asyncio.timeout(rng.uniform(0, 6)),
                client.stream("POST", f"{served.url}/v1/chat/completions", json=body) as response,
            ):
                async for _ in response.aiter_lines():
                    pass

    async def all_leave() -> None:
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
            await asyncio.gather(*(leave(client) for _ in range(300)))

    asyncio.run(all_leave())
    for replica in replicas:
        wait_for("all requests are dropped", partial(_idle, sdk.on_replica(replica)), 60)


def _idle(client: Client) -> bool:
    return bool(client.cache_status()["open_requests"] == 0)


# -- the SDK, from this second process --------------------------------------------------------------------------------


def test_sdk(sdk: Client) -> None:
    answer = sdk.chat("Why is the sky blue?", max_tokens=8, temperature=0)
    assert answer.text
    assert answer.report is not None
    assert "".join(sdk.stream("Why is the sky blue?", max_tokens=8, temperature=0)) == answer.text
    assert sdk.complete("Once upon a time", max_tokens=3).text
    with pytest.raises(ServingError, match="maximum context length"):
        sdk.chat("word " * 6000, max_tokens=1)
    with pytest.raises(ServingError, match="no application elsewhere"):
        connect("elsewhere")


async def test_sdk_async(sdk: Client) -> None:
    answer = await sdk.achat("Why is the sky blue?", max_tokens=8, temperature=0)
    pieces = [piece async for piece in sdk.astream("Why is the sky blue?", max_tokens=8, temperature=0)]
    assert "".join(pieces) == answer.text
    assert (await sdk.acomplete([504, 1980], max_tokens=2)).finish_reason == "length"


# -- commands ---------------------------------------------------------------------------------------------------------


def test_demo_prints_one_object(served: Served) -> None:
    done = subprocess.run([*TIERSERVE, "demo", "--rounds", "1", "--json"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["tier"] for row in rows] == ["cold", "l0", "l1", "l2"]
    assert len({row["answer"] for row in rows}) == 1
    total = rows[0]["tokens"]["computed"]
    assert total > 2000
    for row in rows[1:]:
        assert sum(row["tokens"].values()) == total
        assert row["tokens"][row["tier"]] > 0.95 * total
    # Two cores shared with other work: only the order of things is certain enough to assert.
    assert rows[0]["ttft_s"] > max(row["ttft_s"] for row in rows[1:])


def test_status_tells_what_the_tiers_hold(served: Served) -> None:
    done = subprocess.run([*TIERSERVE, "status", "--json"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["applications"]["tierserve"]["status"] == "RUNNING"
    (cache,) = report["caches"]
    assert cache["healthy"]
    assert 0 < cache["l1"]["used_bytes"] <= cache["l1"]["capacity_bytes"]


def test_a_taken_port_is_one_line(served: Served) -> None:
    command = [*TIERSERVE, "serve", "--port", str(served.port)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "choose another" in done.stderr


# -- faults -----------------------------------------------------------------------------------------------------------


def test_killing_the_cache_server_fails_no_request(served: Served, sdk: Client, replicas: list[str]) -> None:
    (victim,) = served.pids_of("app.tiers.launcher")
    engines = served.pids_of("VLLM::EngineCore")
    assert asyncio.run(statuses_while_killing(served, victim)) == [200] * 20
    assert served.pids_of("VLLM::EngineCore") == engines
    first, second = replicas

    def hits_l1() -> bool:
        """A prompt computed on one replica is loaded from L1 by the other: both engines are attached again."""
        salt = uuid4().hex
        sdk.on_replica(first).chat(LONG[:900], max_tokens=1, cache_salt=salt)
        report = sdk.on_replica(second).chat(LONG[:900], max_tokens=1, cache_salt=salt).report
        return report is not None and bool(report.l1)

    wait_for("L1 is in use again", hits_l1, 60)
    assert sdk.cache_status()["cache"]["restarts"] == 1
    told = [line.split(": ", 1)[1] for line in served.output().splitlines() if "  cache " in line]
    assert [line.split(" after ")[0] for line in told] == [
        "its server is down, engines go on without L1 and L2 while another is started",
        "its server is back",
    ]


async def statuses_while_killing(served: Served, victim: int) -> list[int]:
    """Send a request every half second, and end the cache server after a few."""
    prompts = [LONG[start : start + 1200] for start in range(0, 1200, 200)]
    async with httpx.AsyncClient(base_url=served.url, timeout=300) as client:

        async def ask(n: int) -> int:
            await asyncio.sleep(n * 0.5)
            body = chat_body(prompts[n % 6], cache_salt="kill")
            return (await client.post("/v1/chat/completions", json=body)).status_code

        asking = [asyncio.ensure_future(ask(n)) for n in range(20)]
        await asyncio.sleep(1.5)
        os.kill(victim, signal.SIGKILL)
        return await asyncio.gather(*asking)
