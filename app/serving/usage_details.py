"""Where a cache report stands in an answer: `usage.prompt_tokens_details`. Pure, but for vLLM's class of it.

A whole answer is a response with `usage`. A stream is server-sent events as strings, one at a time or in batches, and
the one that ends with usage carries the report.
"""

import json
from typing import Any

from app.cache_report import CacheReport


def has_usage(response: Any, *, in_stream: bool) -> bool:
    """Whether a report belongs into it. `in_stream`: the client asked for usage at the end of a stream."""
    return getattr(response, "usage", None) is not None or (in_stream and _ends_with_usage(response))


def with_report(response: Any, report: CacheReport) -> Any:
    """A response that has usage, with the report in it: a whole answer is written into, of a stream it is another."""
    if (usage := getattr(response, "usage", None)) is not None:
        from vllm.entrypoints.serve.engine.protocol import PromptTokenUsageInfo

        usage.prompt_tokens_details = PromptTokenUsageInfo(**report.details())
        return response
    if isinstance(response, list):
        return [_with_details(chunk, report.details()) for chunk in response]
    return _with_details(response, report.details())


def _ends_with_usage(piece: Any) -> bool:
    """Of a stream. A model may write what looks like it, but JSON escapes its quotes."""
    chunks = piece if isinstance(piece, list) else [piece]
    return any(isinstance(chunk, str) and '"choices":[]' in chunk and '"usage":{' in chunk for chunk in chunks)


def _with_details(chunk: Any, details: dict[str, Any]) -> Any:
    if not _ends_with_usage(chunk):
        return chunk
    prefix, _, data = chunk.partition("data: ")
    body, end, rest = data.partition("\n\n")
    message = json.loads(body)
    message["usage"]["prompt_tokens_details"] = details
    return f"{prefix}data: {json.dumps(message, separators=(',', ':'))}{end}{rest}"
