"""The smallest body that each endpoint takes, for the messages to those who sent another."""

import json
from typing import Any

_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello!"}]}
_SMALLEST: dict[str, dict[str, Any]] = {
    "/chat/completions": _CHAT,
    "/completions": {"prompt": "Once upon a time"},
    "/embeddings": {"input": "A sentence."},
    "/score": {"text_1": "A question?", "text_2": "An answer."},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/tokenize": {"prompt": "A sentence."},
}

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
"""What most people look for."""


def smallest_body(path: str) -> str:
    """As JSON; that of a chat for a path without one."""
    found = next((body for end, body in _SMALLEST.items() if path.endswith(end)), _CHAT)
    return json.dumps({"model": "MODEL", **found})


def example_of(path: str, field: str) -> str | None:
    """`"field": value` as JSON, if the endpoint's smallest body has the field."""
    found = json.loads(smallest_body(path))
    return f"{json.dumps(field)}: {json.dumps(found[field])}" if field in found else None
