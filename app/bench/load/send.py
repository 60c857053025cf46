"""One request, streamed and timed. Never raises for what an endpoint does: a failure is a record with an error."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.bench.load.endpoint import Endpoint
from app.bench.load.plan import PlannedRequest
from app.bench.load.record import RequestRecord, tier_fields
from app.cache_report import REPLICA_HEADER, from_details

Clock = Callable[[], float]


@dataclass
class _Heard:
    """What has come so far of one answer."""

    times: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    status: int = 0
    replica: str = ""
    error: str = ""


async def send(
    http: httpx.AsyncClient,
    endpoint: Endpoint,
    request: PlannedRequest,
    clock: Clock,
    *,
    index: int = 0,
    scheduled_s: float | None = None,
) -> RequestRecord:
    """POST to /v1/chat/completions and read the stream to its end. `clock` counts from the start of the run."""
    heard = _Heard()
    started = clock()
    try:
        await _stream(http, endpoint, request, clock, heard)
    except httpx.HTTPError as error:
        heard.error = f"{type(error).__name__}: {error}".rstrip(": ")
    ended = clock()
    if not heard.error and not heard.times:
        heard.error = "the answer has no token"
    details = heard.usage.get("prompt_tokens_details") or {}
    return RequestRecord(
        index=index,
        phase=request.phase,
        conversation=request.conversation,
        turn=request.turn,
        scheduled_s=started if scheduled_s is None else scheduled_s,
        started_s=started,
        ttft_s=heard.times[0] - started if heard.times else None,
        itl_s=tuple(after - before for before, after in zip(heard.times, heard.times[1:], strict=False)),
        e2e_s=ended - started,
        planned_tokens=request.prompt_tokens,
        prompt_tokens=int(heard.usage.get("prompt_tokens") or 0),
        output_tokens=int(heard.usage.get("completion_tokens") or len(heard.times)),
        cached_tokens=details.get("cached_tokens"),
        **tier_fields(from_details(details)),
        replica=str(details.get("replica") or heard.replica),
        status=heard.status,
        error=heard.error,
        text="".join(heard.pieces),
    )


async def _stream(
    http: httpx.AsyncClient, endpoint: Endpoint, request: PlannedRequest, clock: Clock, heard: _Heard
) -> None:
    headers = {**endpoint.headers, **request.headers}
    url = f"{endpoint.base}/v1/chat/completions"
    async with http.stream("POST", url, json=request.body(endpoint.model), headers=headers) as response:
        heard.status, heard.replica = response.status_code, response.headers.get(REPLICA_HEADER, "")
        if response.is_error:
            heard.error = (await response.aread()).decode(errors="replace")[:500] or f"status {response.status_code}"
            return
        async for message in _messages(response.aiter_lines()):
            if not isinstance(message, dict) or message.get("error"):
                heard.error = f"in the stream: {json.dumps(message)[:500]}"
                return
            _hear(message, clock(), heard)


def _hear(message: dict[str, Any], now: float, heard: _Heard) -> None:
    """A piece with text is a token's arrival; an answer whose tokens have no text counts when it finishes."""
    choices = message.get("choices") or []
    text = "".join((choice.get("delta") or {}).get("content") or choice.get("text") or "" for choice in choices)
    if text or (not heard.times and any(choice.get("finish_reason") for choice in choices)):
        heard.times.append(now)
        heard.pieces.append(text)
    heard.usage = message.get("usage") or heard.usage


async def _messages(lines: AsyncIterator[str]) -> AsyncIterator[Any]:
    async for line in lines:
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if not data or data == "[DONE]":
            continue
        try:
            yield json.loads(data)
        except ValueError:
            yield data
