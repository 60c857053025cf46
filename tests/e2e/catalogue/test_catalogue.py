"""Several models in one application, each with its own tiers and routing: chat, and embeddings without L1.

The SDK is used as another deployment would: from inside an application of its own on the same cluster.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from app.client import connect
from app.errors import ServingError
from app.local.record import living_runs
from tests.e2e.conftest import ROOT, Served, disconnect, start, stop

CHAT, EMBED = "team-a/chat", "team-b.embed"


def catalogue_file(directory: Path) -> Path:
    document = yaml.safe_load((ROOT / "serve_configs" / "local.yaml").read_text())
    (chat,) = document["applications"][0]["args"]["models"]
    small = {"replicas": 1, "l0": {"gib": 0.5}}
    embed = {
        "id": EMBED,
        "source": "demo",
        "dtype": "float32",
        "num_cpus": 0.5,
        "engine": {"runner": "pooling", "convert": "embed", "max_model_len": 512, "enforce_eager": True},
        "l1": {"enabled": False},
        "l2": {"enabled": False},
        "routing": {"strategy": "round_robin"},
    }
    limits = {"max_ongoing_requests": 2, "max_queued_requests": 2}
    models = [{**chat, "id": CHAT, **small, **limits, "routing": {"strategy": "session"}}, {**embed, **small}]
    document["applications"][0]["args"]["models"] = models
    path = directory / "catalogue.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="module")
def catalogue(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("catalogue")
    running = start(home, directory / "serve.log", str(catalogue_file(directory)))
    yield running
    assert stop(running) == 0, running.output()


def test_lists_every_model(catalogue: Served) -> None:
    listed = httpx.get(f"{catalogue.url}/v1/models").json()["data"]
    assert {model["id"] for model in listed} == {CHAT, EMBED}


def test_each_model_answers_for_what_it_can_do(catalogue: Served) -> None:
    chat = {"model": CHAT, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    answered = httpx.post(f"{catalogue.url}/v1/chat/completions", json=chat, timeout=120)
    assert answered.status_code == 200, answered.text
    assert answered.headers["x-tierserve-cache"].startswith("l0=0, l1=0, l2=0")
    embedded = httpx.post(f"{catalogue.url}/v1/embeddings", json={"model": EMBED, "input": ["a", "b"]}, timeout=120)
    assert embedded.status_code == 200, embedded.text
    vectors = [item["embedding"] for item in embedded.json()["data"]]
    assert len(vectors) == 2
    assert len(vectors[0]) == 576
    assert vectors[0] != vectors[1]
    refused = httpx.post(f"{catalogue.url}/v1/chat/completions", json={**chat, "model": EMBED}, timeout=120)
    assert refused.status_code == 400, refused.text


def test_a_model_must_be_named(catalogue: Served) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    response = httpx.post(f"{catalogue.url}/v1/chat/completions", json=body, timeout=120)
    assert 400 <= response.status_code < 500, response.text
    assert CHAT in response.json()["error"]["message"]


async def test_a_full_queue_is_a_503_that_says_when_to_come_back(catalogue: Served) -> None:
    body = {"model": CHAT, "messages": [{"role": "user", "content": "Count to a hundred."}], "max_tokens": 40}
    async with httpx.AsyncClient(base_url=catalogue.url, timeout=120) as client:
        responses = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for _ in range(12)))
    refused = [response for response in responses if response.status_code != 200]
    assert 0 < len(refused) < 12
    for response in refused:
        assert response.status_code == 503, response.text
        assert response.headers["Retry-After"] == "1"
        assert response.json()["error"]["code"] == "overloaded"


def test_only_the_model_with_l1_has_a_cache_server(catalogue: Served) -> None:
    assert len(catalogue.pids_of("app.tiers.launcher")) == 1


def test_sdk_in_another_deployment(catalogue: Served) -> None:
    from ray import serve

    with pytest.raises(ServingError, match="name one"):
        connect("tierserve")
    try:

        @serve.deployment(ray_actor_options={"num_cpus": 0})
        class Assistant:
            def __init__(self) -> None:
                from app.client import connect

                self._chat = connect("tierserve", model=CHAT)

            async def __call__(self, question: str) -> str:
                return (await self._chat.achat(question, max_tokens=4)).text

        assistant = Assistant.bind()  # type: ignore[attr-defined]
        handle = serve.run(assistant, name="assistant", route_prefix="/assistant")
        assert handle.remote("Why is the sky blue?").result(timeout_s=120)
        serve.delete("assistant")
    finally:
        disconnect()


def test_the_note_of_the_run_names_its_models(catalogue: Served) -> None:
    (run,) = [run for run in living_runs() if run.pid == catalogue.process.pid]
    assert set(run.models) == {CHAT, EMBED}
    assert run.url == catalogue.url
    assert os.environ["TIERSERVE_HOME"] == str(catalogue.home)
