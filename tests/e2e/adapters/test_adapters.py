"""Two models with LoRA adapters of the same names in one application: no tier and no router mixes any of them up.

Every comparison is with what the same model or adapter answers under a salt of its own, where there is nothing to hit.
"""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import yaml

from app import demo_model
from app.cache_report import REPLICA_HEADER, ROUTING_HEADER
from app.client import Client, connect
from app.demo import PROMPT
from app.errors import ServingError
from tests.e2e.adapters.random_adapter import random_adapter
from tests.e2e.adapters.tiny_model import tiny_model
from tests.e2e.conftest import ROOT, Served, disconnect, start, stop, stored, wait_for

ASH, OAK = "ash", "oak"
OF_ASH = (ASH, f"{ASH}:one", f"{ASH}:two")
OF_OAK = (OAK, f"{OAK}:one", f"{OAK}:two")
LONG = PROMPT.read_text()[:3000]
TIERS = ("l0_tokens", "l1_tokens", "l2_tokens")
SCALE = 0.3


def folder(directory: Path, model: str) -> Path:
    return directory / f"adapters-of-{model}"


def adapters_file(directory: Path) -> Path:
    """Two models of one shape, each with two adapters: ASH with two replicas and kv_aware, OAK with one and
    prefix_aware. Their node's cache server is the same one.
    """
    document = yaml.safe_load((ROOT / "serve_configs" / "local.yaml").read_text())
    (local,) = document["applications"][0]["args"]["models"]
    models = []
    # OAK's adapters make room for each other.
    for seed, (name, replicas, strategy, most) in enumerate(((ASH, 2, "kv_aware", 16), (OAK, 1, "prefix_aware", 1))):
        source = tiny_model(demo_model.demo_model(), directory / name, seed=seed)
        for number, adapter in enumerate(("one", "two")):
            random_adapter(source, folder(directory, name) / adapter, seed=10 * seed + number, scale=SCALE)
        changes = {"id": name, "source": str(source), "replicas": replicas, "l0": {"gib": 0.1}, "l1": {"gib": 0.2}}
        lora = {"path": str(folder(directory, name)), "max_per_replica": most}
        routing = {"strategy": strategy, "debug": True}
        models.append({**local, **changes, "lora": lora, "routing": routing})
    document["applications"][0]["args"]["models"] = models
    path = directory / "adapters.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def served(home: Path, directory: Path) -> Iterator[Served]:
    running = start(home, directory / "serve.log", str(adapters_file(directory)))
    yield running
    assert stop(running) == 0, running.output()


@pytest.fixture(scope="module")
def sdk(served: Served) -> Iterator[Client]:
    yield connect("tierserve", model=ASH)
    disconnect()


@pytest.fixture(scope="module")
def replicas(sdk: Client, served: Served) -> list[str]:
    """Of ASH. The node's cache serves OAK's replica as well."""
    of_oak = connect("tierserve", model=OAK).cache_status()["replica"]
    return sorted(set(sdk.cache_status()["cache"]["replicas"]) - {of_oak})


@dataclass(frozen=True)
class Said:
    text: str
    replica: str
    hits: tuple[int, int, int]
    """Tokens from L0, L1 and L2."""
    prompt: int
    expected: dict[str, tuple[int, int, int]]
    """What the router expected of each replica that it ranked."""

    @property
    def whole_chunks(self) -> int:
        return self.prompt // 64 * 64


def body(model: str, prompt: str, salt: str | None) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "cache_salt": salt}


def ask(http: httpx.Client, model: str, replica: str = "", *, salt: str | None = None) -> Said:
    response = http.post("/v1/completions", json=body(model, LONG, salt), headers={REPLICA_HEADER: replica})
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    found = usage["prompt_tokens_details"]
    hits = tuple(found[tier] for tier in TIERS)
    assert sum(hits) + found["computed_tokens"] == usage["prompt_tokens"]
    choices = json.loads(response.headers[ROUTING_HEADER])["choices"]
    expected = {one["replica"]: (one["match"], one["l1"], one["l2"]) for one in choices}
    return Said(response.json()["choices"][0]["text"], found["replica"], hits, usage["prompt_tokens"], expected)


@pytest.fixture(scope="module")
def alone(http: httpx.Client, replicas: list[str]) -> dict[str, str]:
    """What each answers without any cache. ASH's on the second replica, so that it has the adapters loaded, too."""
    said = {}
    for model in (*OF_ASH, *OF_OAK):
        answer = ask(http, model, replicas[1] if model in OF_ASH else "", salt=uuid4().hex)
        assert answer.hits == (0, 0, 0), model
        said[model] = answer.text
    assert len(set(said.values())) == len(said), f"answers that cannot be told apart: {said}"
    return said


# -- one model and its adapters, two replicas, kv_aware ---------------------------------------------------------------


def test_every_tier_keeps_adapters_apart(
    http: httpx.Client, sdk: Client, replicas: list[str], alone: dict[str, str]
) -> None:
    first, second = replicas
    base, one, two = OF_ASH
    for model in (two, base, one):
        computed = ask(http, model, first)
        assert (computed.hits, computed.text) == ((0, 0, 0), alone[model]), model
        assert set(computed.expected.values()) == {(0, 0, 0)}, model
        stored(sdk)
    for model in (one, two, base):
        again, there = ask(http, model, first), ask(http, model, second)
        assert again.hits[0] >= again.whole_chunks > 0, model
        assert there.hits == (0, there.whole_chunks, 0), model
        assert again.text == there.text == alone[model], model
    for replica in replicas:
        sdk.on_replica(replica).clear_caches()
    for model in (base, one, two):
        there = ask(http, model, second)
        assert there.hits == (0, 0, there.whole_chunks), model
        assert there.text == alone[model], model


def test_the_router_knows_where_each_adapters_kv_is(
    http: httpx.Client, sdk: Client, replicas: list[str], alone: dict[str, str]
) -> None:
    """One adapter's prompt is on the first replica, another's on the second: of neither it expects the other's."""
    first, second = replicas
    base, one, two = OF_ASH
    salt = uuid4().hex
    homes = {one: first, two: second}
    for model, replica in homes.items():
        ask(http, model, replica, salt=salt)

    def seen(model: str) -> bool:
        """Its KV where it was computed, and from L1 or L2 on the other replica; and that is where it is sent."""
        said = ask(http, model, salt=salt)
        other = next(expected for replica, expected in said.expected.items() if replica != homes[model])
        return said.replica == homes[model] and said.expected[homes[model]][0] >= said.whole_chunks == sum(other)

    for model in homes:
        wait_for(f"the router has heard where {model} is", partial(seen, model), 30)
    nobodys = ask(http, base, salt=salt)
    assert set(nobodys.expected.values()) == {(0, 0, 0)}
    assert nobodys.hits == (0, 0, 0)


def test_an_adapter_that_was_replaced_is_another_one(
    http: httpx.Client, directory: Path, replicas: list[str], sdk: Client
) -> None:
    """It is added while the application runs, and loaded by the first replica; by the second with other weights."""
    first, second = replicas
    model, place = f"{ASH}:new", folder(directory, ASH) / "new"
    random_adapter(directory / ASH, place, seed=40, scale=SCALE)
    old = ask(http, model, first)
    stored(sdk)
    shutil.rmtree(place)
    random_adapter(directory / ASH, place, seed=41, scale=SCALE)
    new = ask(http, model, second)
    assert new.hits == (0, 0, 0)
    assert new.text == ask(http, model, second, salt=uuid4().hex).text != old.text
    # A replica keeps what it has loaded, whatever becomes of the folder.
    assert ask(http, model, first).text == old.text


def test_sdk(sdk: Client, alone: dict[str, str]) -> None:
    for model in OF_ASH:
        assert connect("tierserve", model=model).complete(LONG, max_tokens=8, temperature=0).text == alone[model]
    with pytest.raises(ServingError, match="there is no adapter nine"):
        connect("tierserve", model=f"{ASH}:nine").complete("Hello")


# -- two models -------------------------------------------------------------------------------------------------------


def test_models_keep_apart_what_is_called_the_same(http: httpx.Client, alone: dict[str, str], sdk: Client) -> None:
    """OAK has ASH's shape, its tokenizer, its adapters' names and its cache server."""
    for model in OF_ASH:
        ask(http, model)
    stored(sdk)
    for model in reversed(OF_OAK):
        computed = ask(http, model)
        assert (computed.hits, computed.text) == ((0, 0, 0), alone[model]), model
        assert set(computed.expected.values()) == {(0, 0, 0)}, model
    for model in OF_OAK:
        again = ask(http, model)
        assert again.hits[0] >= again.whole_chunks > 0, model
        assert again.text == alone[model], model
        assert again.expected[again.replica][0] > 0, model
    connect("tierserve", model=OAK).on_replica(again.replica).clear_caches(l1=False)
    for model in OF_OAK:
        there = ask(http, model)
        assert there.hits == (0, there.whole_chunks, 0), model
        assert there.text == alone[model], model


async def test_many_may_ask_for_an_adapter_that_nobody_has_loaded(served: Served, directory: Path) -> None:
    random_adapter(directory / OAK, folder(directory, OAK) / "three", seed=20, scale=SCALE)
    async with httpx.AsyncClient(base_url=served.url, timeout=120) as client:
        asked = body(f"{OAK}:three", LONG, None)
        responses = await asyncio.gather(*(client.post("/v1/completions", json=asked) for _ in range(6)))
    assert [response.status_code for response in responses] == [200] * 6, responses[0].text
    assert len({response.json()["choices"][0]["text"] for response in responses}) == 1


# -- names ------------------------------------------------------------------------------------------------------------


def test_adapters_are_listed_beside_their_model(http: httpx.Client) -> None:
    listed = {model["id"] for model in http.get("/v1/models").json()["data"]}
    assert {*OF_ASH, *OF_OAK} <= listed
    assert http.get(f"/v1/models/{ASH}:one").json()["id"] == f"{ASH}:one"


@pytest.mark.parametrize("name", ["nine", "", ".", "..", "../adapters-of-oak/one", "one/"])
def test_a_name_that_is_no_adapters_is_refused(http: httpx.Client, name: str) -> None:
    response = http.post("/v1/completions", json=body(f"{ASH}:{name}", "Hello", None))
    assert response.status_code == 404, response.text
    assert f"{ASH}:one" in response.json()["error"]["message"]


def test_an_adapter_that_cannot_be_loaded_says_why(http: httpx.Client, directory: Path) -> None:
    place = random_adapter(directory / OAK, folder(directory, OAK) / "wide", seed=30, scale=SCALE)
    config = json.loads((place / "adapter_config.json").read_text())
    (place / "adapter_config.json").write_text(json.dumps({**config, "r": 64}))
    response = http.post("/v1/completions", json=body(f"{OAK}:wide", "Hello", None))
    assert response.status_code == 400, response.text
    assert "64 is greater than max_lora_rank" in response.json()["error"]["message"]
