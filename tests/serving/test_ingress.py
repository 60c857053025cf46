"""The ingress' own part, on handles that answer without a cluster: tenants, models, reports in headers, and order."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from ray.llm._internal.serve.core.configs.openai_api_models import ModelCard
from ray.serve.llm.openai_api_models import ChatCompletionRequest, ChatCompletionResponse
from starlette.requests import Request
from starlette.testclient import TestClient
from vllm.entrypoints.serve.engine.protocol import PromptTokenUsageInfo, UsageInfo

from app.routing.core import RoutingCore
from app.serving import ingress
from app.serving.auth import tenant_salt
from app.serving.http_errors import ModelNotFound
from app.serving.ingress import TieredIngress, application
from app.serving.stream_preface import is_asked_for, with_preface
from app.settings import LoraSettings
from app.settings_auth import AuthSettings

DETAILS = {"cached_tokens": 96, "l0_tokens": 32, "l1_tokens": 64, "l2_tokens": 0, "computed_tokens": 4, "replica": "r1"}


def answer(details: dict[str, Any] | None) -> ChatCompletionResponse:
    usage = UsageInfo(prompt_tokens=100, total_tokens=101, completion_tokens=1)
    usage.prompt_tokens_details = PromptTokenUsageInfo(**details) if details else None
    return ChatCompletionResponse(model="m", choices=[], usage=usage)


class Handle:
    """A deployment handle as the ingress uses one; keeps what it was asked."""

    def __init__(self, *responses: Any) -> None:
        self.responses, self.asked, self.infos = responses, list[Any](), list[Any]()
        self.chosen: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(remote=self._remote)

    def options(self, **chosen: Any) -> "Handle":
        self.chosen.append(chosen)
        return self

    async def _remote(self, body: Any, info: Any) -> AsyncGenerator[Any, None]:
        self.asked.append(body)
        self.infos.append(info)
        for response in self.responses:
            yield response


@pytest.fixture(autouse=True)
def core(monkeypatch: pytest.MonkeyPatch) -> RoutingCore:
    """The router of this process, which Serve would have made; `serve` itself answers only inside a replica."""
    made = RoutingCore("round_robin")
    context = SimpleNamespace(app_name="app")
    monkeypatch.setattr(ingress, "serve", SimpleNamespace(get_replica_context=lambda: context))
    monkeypatch.setattr(ingress, "find_core", lambda app, deployment: made if deployment == "engine:m" else None)
    return made


def front(handle: Handle, *ids: str, lora: Path | None = None) -> TieredIngress:
    """`lora`: where the first model's adapters are."""
    names = ids or ("m",)
    card = ModelCard(id="m", object="model", owned_by="us", permission=[], metadata={"model_id": "m"})
    adapters = {names[0]: LoraSettings(path=str(lora))} if lora is not None else {}
    return TieredIngress(dict.fromkeys(names, handle), dict.fromkeys(names, card), adapters=adapters)


def request(tenant: str | None = None, **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    state = {} if tenant is None else {"tenant": tenant}
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw, "state": state})


def body(model: str | None = "m", **fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(model=model, messages=[{"role": "user", "content": "hi"}], **fields)


async def test_the_report_goes_into_headers() -> None:
    response = await front(Handle(answer(DETAILS))).chat(body(), request())
    assert response.headers["x-tierserve-cache"] == "l0=32, l1=64, l2=0, computed=4"
    assert response.headers["x-tierserve-replica"] == "r1"
    assert "x-tierserve-routing" not in response.headers


async def test_without_a_report_there_is_no_header() -> None:
    for details in (None, {"cached_tokens": 3}):
        response = await front(Handle(answer(details))).chat(body(), request())
        assert "x-tierserve-cache" not in response.headers


async def test_a_client_that_leaves_has_its_call_cancelled() -> None:
    """Whatever Serve itself does: this fails when Ray's ingress takes its handles from elsewhere."""

    class Waiting:
        cancelled = False

        def __aiter__(self) -> "Waiting":
            return self

        async def __anext__(self) -> Any:
            await asyncio.Event().wait()

        def cancel(self) -> None:
            self.cancelled = True

    handle, waiting = Handle(), Waiting()
    handle.chat = SimpleNamespace(remote=lambda *_: waiting)
    asked = asyncio.ensure_future(front(handle).chat(body(stream=True), request()))
    done, _ = await asyncio.wait([asked], timeout=0.1)
    assert not done
    asked.cancel()
    await asyncio.wait([asked])
    assert waiting.cancelled


async def streamed(*pieces: Any) -> tuple[Any, str]:
    response = await front(Handle(*pieces)).chat(body(stream=True), request())
    return response, "".join([piece async for piece in response.body_iterator])


async def test_a_streams_headers_tell_what_was_known_at_its_first_piece() -> None:
    first = 'data: {"choices": []}\n\n'
    for piece in (with_preface(first, DETAILS), with_preface([first], DETAILS)):
        response, text = await streamed(piece, first)
        assert response.headers["x-tierserve-cache"] == "l0=32, l1=64, l2=0, computed=4"
        assert response.headers["x-tierserve-replica"] == "r1"
        assert text == first + first + "data: [DONE]\n\n"


async def test_a_stream_of_several_prompts_tells_its_replica_alone() -> None:
    response, _ = await streamed(with_preface("data: 1\n\n", {"replica": "r1"}))
    assert response.headers["x-tierserve-replica"] == "r1"
    assert "x-tierserve-cache" not in response.headers


async def test_replicas_are_asked_for_it_by_streams_alone() -> None:
    for stream in (True, False):
        handle = Handle("data: 1\n\n" if stream else answer(None))
        await front(handle).chat(body(stream=stream), request())
        assert [is_asked_for(info) for info in handle.infos] == [stream]


def test_openai_clients_read_models_and_their_time(lora: Path) -> None:
    app = application(AuthSettings())
    ingress = front(Handle(), lora=lora)
    app.get("/v1/models")(ingress.models)
    app.get("/v1/models/{model:path}")(ingress.model_data)
    client = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=TestClient(app), max_retries=0)
    listed = client.models.list().data
    assert [model.id for model in listed] == ["m", "m:one", "m:two"]
    assert all(type(model.created) is int and model.created > 0 for model in listed)
    assert client.models.retrieve("m:one").created == listed[1].created


async def test_a_tenants_salt_replaces_the_clients() -> None:
    handle = Handle(answer(None))
    for tenant, salt in (("one", None), ("one", "mine"), ("two", "mine"), (None, "mine"), (None, None)):
        await front(handle).chat(body(cache_salt=salt), request(tenant))
    salts = [asked.cache_salt for asked in handle.asked]
    assert salts == [
        *(tenant_salt("one", None), tenant_salt("one", "mine"), tenant_salt("two", "mine")),
        *("mine", None),
    ]


@pytest.mark.parametrize("model", ["other", "other:adapter", ""])
async def test_an_unknown_model_reaches_no_replica(model: str) -> None:
    handle = Handle(answer(None))
    with pytest.raises(ModelNotFound, match="Available here: m"):
        await front(handle).chat(body(model), request())
    assert handle.asked == []


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        (tmp_path / "adapters" / name).mkdir(parents=True)
        (tmp_path / "adapters" / name / "adapter_config.json").write_text("{}")
    return tmp_path / "adapters"


async def test_an_adapters_request_is_sent_under_the_adapters_name(lora: Path) -> None:
    handle = Handle(answer(None))
    await front(handle, lora=lora).chat(body("m:two"), request())
    assert handle.chosen == [{"stream": True, "multiplexed_model_id": "m:two"}]
    assert [asked.model for asked in handle.asked] == ["m:two"]


async def test_an_adapter_that_is_not_there_reaches_no_replica(lora: Path) -> None:
    handle = Handle(answer(None))
    for name in ("m:three", "m:", "m:../adapters/one", "n:one"):
        with pytest.raises(ModelNotFound):
            await front(handle, "m", "n", lora=lora).chat(body(name), request())
    with pytest.raises(ModelNotFound, match="Available here: m, m:one, m:two"):
        await front(handle, lora=lora).chat(body("m:three"), request())
    assert handle.asked == []


async def test_adapters_have_cards_and_may_come_and_go(lora: Path) -> None:
    ingress = front(Handle(), "m", "n", lora=lora)
    assert [card["id"] for card in (await ingress.models())["data"]] == ["m", "m", "m:one", "m:two"]
    assert (await ingress.model_data("m:one"))["metadata"] == {"model_id": "m", "base_model_id": "m"}
    (lora / "one").rename(lora / "three")
    assert (await ingress.model_data("m:three"))["id"] == "m:three"
    with pytest.raises(ModelNotFound):
        await ingress.model_data("m:one")


async def test_naming_the_model_is_optional_only_if_there_is_one() -> None:
    await front(Handle(answer(None))).chat(body(None), request())
    with pytest.raises(ModelNotFound):
        await front(Handle(answer(None)), "m", "n").chat(body(None), request())


async def test_a_model_that_is_not_there_has_no_card() -> None:
    with pytest.raises(ModelNotFound):
        await front(Handle()).model_data("other")


def client() -> TestClient:
    app = application(AuthSettings.model_validate({"api_keys": [{"tenant": "one", "key": "key-of-one"}]}))

    @app.get("/fail")
    def fail() -> None:
        raise RuntimeError("secret")

    return TestClient(app)


KEY = {"Authorization": "Bearer key-of-one"}
ELSEWHERE = {"Origin": "https://page.example"}


@pytest.mark.parametrize(
    ("path", "headers", "status"), [("/fail", {}, 401), ("/fail", KEY, 500), ("/nowhere", KEY, 404)]
)
def test_a_browser_may_read_refusals_and_errors(path: str, headers: dict[str, str], status: int) -> None:
    response = client().get(path, headers=headers | ELSEWHERE)
    assert response.status_code == status
    assert response.headers["access-control-allow-origin"] == "*"
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_browsers_preflight_needs_no_key() -> None:
    asked = {**ELSEWHERE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    response = client().options("/v1/chat/completions", headers=asked)
    assert response.status_code == 200
    assert "authorization" in response.headers["access-control-allow-headers"].lower()


def test_the_schema_is_not_served_without_a_key() -> None:
    assert client().get("/openapi.json").status_code == 401
    assert client().get("/docs").status_code == 401
    assert client().get("/docs", headers=KEY).status_code == 404
