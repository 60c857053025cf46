"""What pydantic lets through although no engine can serve it: found here, where the client can still be told. Pure.

vLLM's request models validate some fields only when they are read (lists of content parts, tool calls), which happens
deep inside, where a failure is nobody's 400 any more. The messages name the field and say nothing of types.
"""

from collections.abc import Iterable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

# Tokenizers take 32-bit ids; what is larger raises out of the replica instead of being refused.
_MAX_TOKEN_ID = (1 << 31) - 1
_LAZY_FIELDS = ("content", "tool_calls")


def check_body(body: Any) -> None:
    """Read the lazy fields of `body` (mutated: they become lists) and refuse what cannot be read.

    Raises:
        HTTPException: 400, with the path of the field.
    """
    for index, message in enumerate(getattr(body, "messages", None) or ()):
        if isinstance(message, MutableMapping):
            for field in _LAZY_FIELDS:
                _read(message, field, f"messages[{index}].{field}")
    tokens = getattr(body, "tokens", None)
    if isinstance(tokens, list) and any(token > _MAX_TOKEN_ID or token < 0 for token in tokens):
        raise HTTPException(400, f"tokens: ids must lie between 0 and {_MAX_TOKEN_ID}.")


def _read(message: MutableMapping[str, Any], field: str, path: str) -> None:
    value = message.get(field)
    if value is None or isinstance(value, (str, list)) or not isinstance(value, Iterable):
        return
    try:
        message[field] = list(value)
    except ValueError:
        raise HTTPException(400, f"{path}: not a list of valid parts.") from None
