"""Errors as OpenAI writes them: `{"error": {"message", "type", "param", "code"}}`, and never an internal name in it."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.serving.examples import ENDPOINTS, example_of, smallest_body
from app.serving.strict_route import StrictRoute

logger = logging.getLogger(__name__)

# Set in a request's state once its body has been read: what goes wrong before is the client's doing.
PARSED = "parsed"
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_KEY = re.compile(r"[a-z_][a-z0-9_]*")
_TYPE_NAMES = {"str", "int", "float", "bool", "bytes", "none", "list", "tuple", "dict", "set"}
# Ray appends this to messages that are otherwise meant for the client; the id is in the header x-request-id anyway.
_NOISE = re.compile(r"\s*\(Request ID: [^)]*\)")
# vLLM's way to say which field it means.
_PARAMETER = re.compile(r"\s*\(parameter=(\w+)(, value=.*)?\)$", re.S)
# What a replica or its process may raise while it is being replaced: the client should simply try again.
UNAVAILABLE = {
    "EngineDeadError",
    "EngineDiedError",
    "ReplicaLostError",
    "DeploymentUnavailableError",
    "ActorDiedError",
    "ActorUnavailableError",
    "ReplicaUnavailableError",
    "StoppedError",
}


def error_response(status: int, message: str, *, param: str | None = None, code: str | None = None) -> JSONResponse:
    body = error_body(status, message, param=param, code=code)
    return JSONResponse(body, status_code=status, headers={"Retry-After": "1"} if status == 503 else None)


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    message = _NOISE.sub("", message).strip()
    if said := _PARAMETER.search(message):
        message, param = message[: said.start()], param or said[1]
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def install_error_handlers(app: FastAPI) -> None:
    """Make every way that a request to `app` can fail end in `error_response`. Before its routes are added."""
    app.router.route_class = StrictRoute
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_middleware(_LastResort)


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), error
    first = _telling(error.errors())
    path, loc = request.url.path, tuple(first.get("loc", ()))
    if loc == ("body",):
        message = f"The request has no body. Send JSON, for example {smallest_body(path)}"
        return error_response(400, message, code="invalid_body")
    param = _param(loc)
    message = str(first.get("msg", "The request is not valid.")).removeprefix("Value error, ")
    if first.get("type") == "missing":
        example = example_of(path, str(param))
        message = f"is required, for example {example}" if example else "is required"
    return error_response(400, f"{param}: {message}" if param else message, param=param, code="invalid_parameter")


def _telling(errors: Sequence[Any]) -> Mapping[str, Any]:
    """The first error; but of a list where a text would do as well, what is wrong with the list."""
    first: Mapping[str, Any] = errors[0] if errors else {}
    of_field, given = tuple(first.get("loc", ()))[:2], first.get("input")
    if first.get("type") == "string_type" and isinstance(given, list):
        for other in errors[1:]:
            if tuple(other["loc"])[:2] == of_field and (other["type"] == "too_long" or other["input"] is not given):
                return dict(other)
    return first


def _param(loc: Any) -> str | None:
    """`('body', 'messages', 0, 'ChatCompletionUserMessageParam', 'content')` -> `messages[0].content`.

    The names of types that a union tried stand among the keys; unlike keys they hold capitals or brackets, or are
    those of Python's own types.
    """
    keys = loc[1:]  # behind where it was looked for: body, query, path
    parts = [part for part in keys if isinstance(part, int) or (_KEY.fullmatch(part) and part not in _TYPE_NAMES)]
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".") or None


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), error
    param, code = getattr(error, "param", None), getattr(error, "code", None)
    response = error_response(error.status_code, _detail(request, error), param=param, code=code)
    response.headers.update(error.headers or {})
    return response


def _detail(request: Request, error: HTTPException) -> str:
    """What to do instead, where Starlette has found no endpoint."""
    if error.status_code == 404 and error.detail == "Not Found":
        return f"There is nothing at {request.url.path}. Try {', '.join(ENDPOINTS)} or /v1/models."
    if error.status_code == 405 and (allowed := (error.headers or {}).get("Allow")):
        return f"{request.url.path} does not take {request.method}: use {allowed}."
    return str(error.detail)


class ModelNotFound(HTTPException):
    """A request names a model that this application does not have."""

    code = "model_not_found"

    def __init__(self, model: str, known: list[str]) -> None:
        super().__init__(404, f"The model `{model}` does not exist. Available here: {', '.join(sorted(known))}.")


class Overloaded(HTTPException):
    """Every replica is busy and the queue before them is full."""

    code = "overloaded"

    def __init__(self) -> None:
        super().__init__(503, "All replicas are busy and the queue is full. Try again shortly.")


class _LastResort:
    """ASGI middleware for what nothing else caught: the client's mistakes keep their status, the rest tells nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        state: dict[str, Any] = scope.setdefault("state", {})  # shared with the request's `state`

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if scope["type"] != "http" or started:
                raise
            unread = scope["method"] == "POST" and PARSED not in state
            await (_unreadable(error) if unread else response_to(error))(scope, receive, send)


def _unreadable(error: Exception) -> Response:
    """vLLM's validators run while the body is read; some raise what is no refusal (a TypeError on null messages)."""
    if isinstance(error, (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)):
        return error_response(400, "The body does not have the shape of a request to this endpoint.")
    return response_to(error)


def response_to(error: Exception) -> Response:
    """What a client is told of an exception: its own message for a 4xx that Ray or vLLM raised, else a plain sentence.

    Exceptions of other processes arrive as classes made on the fly, so they are told apart by name and attributes.
    """
    names = {cls.__name__ for cls in type(error).__mro__}
    if "BackPressureError" in names:
        overloaded = Overloaded()
        return error_response(overloaded.status_code, overloaded.detail, code=overloaded.code)
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and 400 <= status < 500:
        cause = getattr(error, "cause", error)
        return error_response(status, message_of(error), param=getattr(cause, "param", None))
    if "UnicodeEncodeError" in names:
        return error_response(400, "The text holds characters that cannot be encoded (lone surrogates).")
    if names & UNAVAILABLE:
        return error_response(503, "The model has no running replica at the moment. Try again shortly.")
    if "VLLMValidationError" in names:
        return error_response(400, message_of(error), param=getattr(error, "parameter", None))
    logger.error("a request failed unexpectedly", exc_info=error)
    return error_response(500, "The server failed to answer this request.")


def message_of(error: Exception) -> str:
    """What the error says. One that was raised in a replica prints as its whole traceback there: its cause does not."""
    cause = getattr(error, "cause", None)
    said = cause if isinstance(cause, Exception) else error
    message = getattr(said, "message", None) or getattr(said, "detail", None)
    return str(message or (said.args[0] if said.args else said))
