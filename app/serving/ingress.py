"""OpenAI-compatible HTTP: Ray Serve LLM's ingress with API keys, tenant salt, cache reports and OpenAI's error shape.

Endpoints, parsing and streaming are Ray's. This adds what happens on the way in (`_get_response`,
`_get_configured_serve_handle`) and on the way out (`_process_llm_request`); all three are private names of ray 2.60.0,
and tests/serving/test_ingress.py fails when they move.
"""

import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from ray import serve
from ray.serve.exceptions import BackPressureError
from ray.serve.llm import LLMConfig
from ray.serve.llm.ingress import OpenAiIngress, make_fastapi_ingress
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from app.cache_report import CACHE_HEADER, REPLICA_HEADER, ROUTING_HEADER, from_details
from app.routing.core import RoutingCore
from app.routing.registry import find_core, set_tokenizer
from app.serving.adapters import adapters_of
from app.serving.auth import ApiKeyMiddleware, tenant_salt
from app.serving.broken_stream import honest
from app.serving.cancelling_handle import CancellingHandle
from app.serving.form_checks import asks_for_form
from app.serving.http_errors import PARSED, ModelNotFound, Overloaded, install_error_handlers
from app.serving.llm_config import deployment_name
from app.serving.request_checks import check_request
from app.serving.second_try import with_second_try
from app.serving.stopping import Stopping
from app.serving.stream_preface import ASKING_HEADER, take_preface
from app.settings import GRACEFUL_SHUTDOWN_TIMEOUT_S, LoraSettings, Settings
from app.settings_auth import AuthSettings

logger = logging.getLogger("tierserve.routing")

_ENDPOINTS: dict[str, Callable[[FastAPI], Any]] = {
    "models": lambda app: app.get("/v1/models"),
    "model_data": lambda app: app.get("/v1/models/{model:path}"),
    "chat": lambda app: app.post("/v1/chat/completions"),
    "completions": lambda app: app.post("/v1/completions"),
    "embeddings": lambda app: app.post("/v1/embeddings"),
    "score": lambda app: app.post("/v1/score"),
    "tokenize": lambda app: app.post("/tokenize"),
    "detokenize": lambda app: app.post("/detokenize"),
    "health": lambda app: app.get("/health"),
}


class TieredIngress(OpenAiIngress):
    """Every method runs on the ingress replica's event loop; none may block."""

    _debug: frozenset[str] = frozenset()

    def __init__(
        self,
        llm_deployments: dict[str, Any],
        model_cards: dict[str, Any],
        *,
        adapters: Mapping[str, LoraSettings] | None = None,
        tokenized: Mapping[str, LLMConfig] | None = None,
        grace_s: float = GRACEFUL_SHUTDOWN_TIMEOUT_S,
        **kwargs: Any,
    ) -> None:
        """`adapters`: of the models that have some. `tokenized`: the models whose routing strategy wants token ids.
        `grace_s`: for answers under way when Serve stops this replica."""
        super().__init__(llm_deployments, model_cards, **kwargs)
        self._model_ids = list(model_cards)
        self._stopping = Stopping(grace_s)
        self._created = int(time.time())
        self._adapters = {model: adapters_of(lora) for model, lora in (adapters or {}).items()}
        for model, config in (tokenized or {}).items():
            place = (serve.get_replica_context().app_name, deployment_name(model))
            threading.Thread(target=_provide_tokenizer, args=(*place, config), daemon=True).start()

    async def health(self) -> dict[str, str]:
        return {"status": "ok"}

    async def model(self, model_id: str) -> dict[str, Any] | None:
        """Ray's card of a model, and since when it is served here; of an adapter its model's, under its name."""
        base = model_id.partition(":")[0]
        card = await super().model(base)
        if card is None:
            return None
        fields: dict[str, Any] = {**card.model_dump(), "created": self._created}
        if base == model_id:
            return fields
        return fields | {"id": model_id, "metadata": {**card.metadata, "base_model_id": base}}

    async def models(self) -> dict[str, Any]:
        names = list(self._model_ids)
        for base, adapters in self._adapters.items():
            names += [f"{base}:{name}" for name in await adapters.names()]
        return {"object": "list", "data": [await self.model(name) for name in names]}

    async def model_data(self, model: str) -> Any:
        await self._check_model(model)
        return await super().model_data(model)

    async def _get_response(
        self, *, body: Any, call_method: str, raw_request: Request | None = None
    ) -> AsyncGenerator[Any, None]:
        if raw_request is not None:
            setattr(raw_request.state, PARSED, True)
        await self._check_model(body.model)
        check_request(body)
        if raw_request is not None and hasattr(body, "cache_salt"):
            body.cache_salt = tenant_salt(getattr(raw_request.state, "tenant", None), body.cache_salt)
        handed_on = _asking(raw_request) if raw_request is not None and getattr(body, "stream", False) else raw_request
        ask = partial(super()._get_response, body=body, call_method=call_method, raw_request=handed_on)
        async for response in self._stopping.bounded(_refusals(with_second_try(ask, suspect=asks_for_form(body)))):
            details, response = take_preface(response)
            if (counted := getattr(getattr(response, "usage", None), "prompt_tokens_details", None)) is not None:
                details = counted.model_dump()
            if raw_request is not None and details:
                raw_request.state.details = details
            yield response

    def _get_configured_serve_handle(self, model_id: str) -> CancellingHandle:
        return CancellingHandle(super()._get_configured_serve_handle(model_id))

    async def _process_llm_request(self, body: Any, call_method: str, raw_request: Request | None = None) -> Response:
        response: Response = await super()._process_llm_request(body, call_method, raw_request)
        details = getattr(raw_request.state, "details", {}) if raw_request is not None else {}
        if isinstance(response, StreamingResponse):
            response.body_iterator = honest(response.body_iterator)
        if (report := from_details(details)) is not None:
            response.headers[CACHE_HEADER] = report.header()
        if replica := details.get("replica"):
            response.headers[REPLICA_HEADER] = replica
        if raw_request is not None and (explained := self._explain(body.model, raw_request)):
            response.headers[ROUTING_HEADER] = explained
        return response

    def _explain(self, model: str | None, raw_request: Request) -> str | None:
        """Why the replica was chosen, for models whose `routing.debug` is on."""
        core = self._core(model) if (model or self._model_ids[0]).split(":")[0] in self._debug else None
        ranking = core.ranking(raw_request.headers.get("x-request-id", "")) if core is not None else None
        return msgspec.json.encode(ranking).decode() if ranking is not None else None

    def _core(self, model: str | None) -> RoutingCore | None:
        base = (model or self._model_ids[0]).split(":")[0]
        return find_core(serve.get_replica_context().app_name, deployment_name(base))

    async def _check_model(self, model: str | None) -> None:
        """Raises ModelNotFound. An adapter is named `base:adapter`; with one model, naming it is optional."""
        if model is None and len(self._model_ids) == 1:
            return
        base, colon, adapter = (model or "").partition(":")
        if base not in self._model_ids:
            raise ModelNotFound(model or "", self._model_ids)
        if colon and not (base in self._adapters and await self._adapters[base].has(adapter)):
            known = await self._adapters[base].names() if base in self._adapters else []
            raise ModelNotFound(model or "", [base, *(f"{base}:{name}" for name in known)])


def application(auth: AuthSettings) -> FastAPI:
    """The FastAPI application around the endpoints. The last middleware that is added is the outermost."""
    app = FastAPI(title="tierserve", docs_url=None, redoc_url=None)
    app.add_middleware(ApiKeyMiddleware, auth=auth)
    install_error_handlers(app)
    # Around all of it, so that a browser may read refusals and errors too.
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])
    return app


def _asking(request: Request) -> Request:
    """The same request, asking its replica for what the headers of a stream tell."""
    return Request({**request.scope, "headers": [*request.headers.raw, (ASKING_HEADER.encode(), b"1")]})


def _provide_tokenizer(app: str, deployment: str, config: LLMConfig) -> None:
    """In a thread, since it takes a second or more. Until it is done, and for good if it fails, requests are routed
    without token ids, which kv_aware says of itself."""
    from app.serving.prompt_tokenizer import PromptTokenizer

    try:
        set_tokenizer(app, deployment, PromptTokenizer(config))
    except Exception:
        logger.exception("no tokenizer for routing to %s", deployment)


async def _refusals(responses: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Pass `responses` on; a full queue becomes our error. Left alone, Serve's wrapper of the application answers with
    a line of plain text that names its settings."""
    try:
        async for response in responses:
            yield response
    except BackPressureError:
        raise Overloaded from None


def ingress_class(settings: Settings) -> Any:
    """The class that Ray Serve deploys: TieredIngress behind a FastAPI application of our own making."""
    debug = frozenset(model.id for model in settings.models if model.routing.debug)
    ingress = type(TieredIngress.__name__, (TieredIngress,), {"_debug": debug})
    return make_fastapi_ingress(ingress, endpoint_map=_ENDPOINTS, app=application(settings.auth))
