"""The Python SDK: typed calls to a running application through Ray Serve handles, from a driver or another deployment.

    from app.client import connect

    client = connect("tierserve")                  # this machine's run; `address="ray://..."` or "auto" for others
    answer = client.chat("Why is the sky blue?", max_tokens=48)
    print(answer.text, answer.report)
    for piece in client.stream("Tell me more."):
        print(piece, end="")

Calls skip HTTP, and with it the API keys: who can reach the Ray cluster may do anything with it anyway. A tenant is
named by `cache_salt`. Inside a deployment use the coroutines (`achat`, `acomplete`, `astream`).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import serve
from ray.serve import context

from app.cache_report import REPLICA_HEADER, CacheReport, from_details
from app.client_request import Messages, chat_request, completion_request
from app.errors import ServingError
from app.local.ray_token import use_ray_token
from app.local.record import living_runs
from app.serving.broken_stream import ENGINE_DIED
from app.serving.http_errors import UNAVAILABLE, message_of
from app.serving.llm_config import NAME_PREFIX, deployment_name


@dataclass(frozen=True)
class Answer:
    """A whole answer. `report` says where the prompt's tokens came from; `response` is OpenAI's full response."""

    text: str
    finish_reason: str | None
    report: CacheReport | None
    response: Mapping[str, Any] = field(repr=False)

    @property
    def texts(self) -> tuple[str, ...]:
        """Of every choice, where `n` or several prompts asked for more than one; `text` is the first."""
        return tuple(map(_text, self.response["choices"]))


def connect(app_name: str = "tierserve", address: str | None = None, *, model: str | None = None) -> "Client":
    """A client of `app_name`. A process that is connected to Ray already (a deployment, a driver) stays there.

    Args:
        app_name: the application's name in its serve file.
        address: of the Ray cluster; None: the run that `tierserve serve` keeps on this machine, else Ray's "auto".
        model: which of the application's models; may be left out if it has one. `MODEL:ADAPTER` names an adapter.

    Raises:
        ServingError: no such cluster, application or model.
    """
    if not ray.is_initialized():
        _join(address or _local_address())
    known = _models(app_name)
    base, _, adapter = (model or "").partition(":")
    if model is not None and deployment_name(base) not in known:
        raise ServingError(f"application {app_name} has no model {model}; it has {', '.join(known.values())}")
    if model is None and len(known) != 1:
        raise ServingError(f"application {app_name} has several models ({', '.join(known.values())}): name one")
    deployment = deployment_name(base) if model is not None else next(iter(known))
    handle = serve.get_deployment_handle(deployment, app_name)
    return Client(handle.options(multiplexed_model_id=model) if adapter else handle, model or _model_id(handle))


def _model_id(handle: Any) -> str:
    """A deployment's name does not tell `a/b` from `a--b`: the replica knows its model's id.

    Asked from a thread, for Ray lets nobody wait for a result on an event loop, which a deployment's constructor is on.
    """
    with ThreadPoolExecutor(1) as pool:
        config = pool.submit(lambda: handle.llm_config.remote().result(timeout_s=60)).result()
    return str(config.model_id)


def _local_address() -> str:
    runs = living_runs()
    return runs[0].ray_address if runs else "auto"


def _join(address: str) -> None:
    use_ray_token()
    try:
        ray.init(address=address, log_to_driver=False, namespace="tierserve-clients", logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ServingError(f"no Ray cluster at {address} ({error}): start one with `make serve`") from error
    # Serve remembers the controller of a cluster that this process has left, and would ask that one (ray 2.60.0).
    context._set_global_client(None)


def _models(app_name: str) -> dict[str, str]:
    """Deployment name -> model id (as far as the deployment's name tells it) of each model of the application."""
    applications = serve.status().applications
    if app_name not in applications:
        have = ", ".join(applications) or "none"
        raise ServingError(f"no application {app_name} runs there (running: {have}): start it with `make serve`")
    deployments = applications[app_name].deployments
    return {name: name.removeprefix(NAME_PREFIX) for name in deployments if name.startswith(NAME_PREFIX)}


class Client:
    """Calls one model. The sync methods are for drivers, the `a` ones for code on an event loop. Made by `connect`."""

    def __init__(self, handle: Any, model: str, replica: str | None = None) -> None:
        self._handle, self.model, self._replica = handle, model, replica

    def on_replica(self, replica: str) -> "Client":
        """A client whose calls go to one replica (only with the model's `routing.debug`)."""
        return Client(self._handle, self.model, replica)

    # -- whole answers ------------------------------------------------------------------------------------------------

    def chat(self, messages: Messages, **options: Any) -> Answer:
        """One chat completion. `options` are OpenAI's and vLLM's (max_tokens, temperature, cache_salt, ...); one that
        neither has is refused, unless it stands in `extra_body={...}`.

        Raises:
            ServingError: the request was refused, or its replica was lost; the message says which and why.
        """
        return _answer(self._first("chat", self._chat(messages, options)))

    def complete(self, prompt: str | list[int], **options: Any) -> Answer:
        """One completion of a text or of token ids. Raises ServingError as `chat` does."""
        return _answer(self._first("completions", completion_request(self.model, prompt, options)))

    async def achat(self, messages: Messages, **options: Any) -> Answer:
        return _answer(await self._afirst("chat", self._chat(messages, options)))

    async def acomplete(self, prompt: str | list[int], **options: Any) -> Answer:
        return _answer(await self._afirst("completions", completion_request(self.model, prompt, options)))

    # -- streams ------------------------------------------------------------------------------------------------------

    def stream(self, messages: Messages, **options: Any) -> Iterator[str]:
        """The pieces of a chat completion's text as they are made; leaving early (`close`, the end of the loop's scope)
        ends the request. Raises ServingError as `chat` does."""
        return self._stream(self._chat(messages, options, stream=True))

    def astream(self, messages: Messages, **options: Any) -> AsyncIterator[str]:
        return self._astream(self._chat(messages, options, stream=True))

    # -- the tiers ----------------------------------------------------------------------------------------------------

    def cache_status(self) -> dict[str, Any]:
        """A replica's view of its node's cache. Name the replica with `on_replica`."""
        return dict(self._unary("cache_status"))

    def clear_caches(self, *, l1: bool = True) -> dict[str, Any]:
        """Empty a replica's L0 and, unless told not to, its node's L1; L2 keeps what it has. Name the replica with
        `on_replica`.
        """
        return dict(self._unary("clear_caches", {"l1": l1}))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _chat(self, messages: Messages, options: Mapping[str, Any], *, stream: bool = False) -> Any:
        return chat_request(self.model, messages, options, stream=stream)

    def _stream(self, request: Any) -> Iterator[str]:
        with _losses():
            responses = self._call("chat", request)
            with _cancelled_if_left(responses):
                for batch in responses:
                    yield from _pieces(batch)

    async def _astream(self, request: Any) -> AsyncIterator[str]:
        with _losses():
            responses = self._call("chat", request)
            with _cancelled_if_left(responses):
                async for batch in responses:
                    for piece in _pieces(batch):
                        yield piece

    @property
    def _pin(self) -> Any:
        if self._replica is None:
            return None
        from ray.llm._internal.serve.core.protocol import RawRequestInfo

        return RawRequestInfo(headers={REPLICA_HEADER: self._replica})

    def _call(self, method: str, request: Any) -> Any:
        return getattr(self._handle.options(stream=True), method).remote(request, self._pin)

    def _first(self, method: str, request: Any) -> Any:
        with _losses():
            return next(iter(self._call(method, request)))

    async def _afirst(self, method: str, request: Any) -> Any:
        with _losses():
            return await anext(aiter(self._call(method, request)))

    def _unary(self, method: str, request: Mapping[str, Any] | None = None) -> Any:
        return getattr(self._handle, method).remote(dict(request or {}), self._pin).result(timeout_s=30)


def _answer(response: Any) -> Answer:
    _refuse(response)
    full = response.model_dump()
    choice = full["choices"][0]
    report = from_details((full.get("usage") or {}).get("prompt_tokens_details"))
    return Answer(_text(choice), choice.get("finish_reason"), report, full)


def _text(choice: Mapping[str, Any]) -> str:
    return (choice["message"]["content"] if "message" in choice else choice["text"]) or ""


_LOST = "the replica that had this request was lost: send it again"


@contextmanager
def _losses() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if {cls.__name__ for cls in type(error).__mro__} & UNAVAILABLE:
            raise ServingError(_LOST) from error
        if 400 <= getattr(error, "status_code", 0) < 500:
            raise ServingError(message_of(error)) from error
        raise


@contextmanager
def _cancelled_if_left(responses: Any) -> Iterator[None]:
    """A replica generates to the end for a caller who has gone, unless it is told."""
    try:
        yield
    except (GeneratorExit, KeyboardInterrupt, asyncio.CancelledError):
        responses.cancel()
        raise


def _refuse(response: Any) -> None:
    error = getattr(response, "error", None)
    if error is not None:
        raise ServingError(str(error.message))


def _pieces(batch: Any) -> Iterator[str]:
    for chunk in batch if isinstance(batch, list) else [batch]:
        _refuse(chunk)
        for line in str(chunk).splitlines():
            body = line.removeprefix("data: ").strip()
            if not body or body == "[DONE]":
                continue
            message = json.loads(body)
            if "error" in message:
                raise ServingError(_LOST if ENGINE_DIED in body else message["error"]["message"])
            for choice in message.get("choices", []):
                if piece := choice.get("delta", {}).get("content"):
                    yield piece
