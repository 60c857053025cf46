"""One streamed chat completion over HTTP, timed: when its first token came, what it said, where its prompt came from.

Used by the demo and the benchmarks; works against any OpenAI-compatible endpoint (others send no cache report).
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from app.cache_report import CacheReport, from_details
from app.errors import ServingError


@dataclass(frozen=True)
class TimedAnswer:
    """Seconds from sending the request to its first piece of text (`ttft_s`) and to its end (`e2e_s`)."""

    ttft_s: float
    e2e_s: float
    text: str
    prompt_tokens: int
    completion_tokens: int
    report: CacheReport | None


def timed_chat(
    client: httpx.Client,
    url: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> TimedAnswer:
    """POST `body` to `url`/v1/chat/completions as a stream and read it to its end.

    Raises:
        ServingError: the endpoint cannot be reached or refuses the request; the message is its own.
    """
    payload = {**body, "stream": True, "stream_options": {"include_usage": True}}
    started = clock()
    first: float | None = None
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    try:
        with client.stream("POST", f"{url}/v1/chat/completions", json=payload, headers=dict(headers or {})) as response:
            if response.is_error:
                raise ServingError(f"{url} answered {response.status_code}: {response.read().decode(errors='replace')}")
            for message in _messages(response.iter_lines()):
                choices = message.get("choices") or []
                text = "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)
                if text:
                    first = first if first is not None else clock()
                    pieces.append(text)
                usage = message.get("usage") or usage
    except httpx.HTTPError as error:
        raise ServingError(f"{url} cannot be reached: {error or type(error).__name__}") from error
    ended = clock()
    return TimedAnswer(
        ttft_s=(first if first is not None else ended) - started,
        e2e_s=ended - started,
        text="".join(pieces),
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        report=from_details(usage.get("prompt_tokens_details")),
    )


def _messages(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if not data or data == "[DONE]":
            continue
        try:
            message = json.loads(data)
        except ValueError:
            raise ServingError(f"the endpoint streamed what is not JSON: {data[:200]}") from None
        if error := message.get("error"):
            raise ServingError(str(error.get("message", error) if isinstance(error, dict) else error))
        yield message
