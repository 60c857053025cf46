"""What pydantic lets through although no engine can serve it: found here, where the client can still be told. Pure.

vLLM's request models validate some fields only when they are read (lists of content parts, tool calls), which happens
deep inside, where a failure is nobody's 400 any more. The messages name the field and say nothing of types.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

# Tokenizers take 32-bit ids; what is larger raises out of the replica instead of being refused.
_MAX_TOKEN_ID = (1 << 31) - 1
_LAZY_FIELDS = ("content", "tool_calls")
# What is sent to the engine goes there in msgpack. Prompts do not: they are tokenised first.
_PROMPTS = {"messages", "prompt", "input", "text_1", "text_2", "tokens", "tools"}
_MSGPACK_INTEGERS = range(-(1 << 63), 1 << 64)


def check_body(body: Any) -> None:
    """Read the lazy fields of `body` (mutated: they become lists) and refuse what cannot be read.

    Raises:
        HTTPException: 400, with the path of the field.
    """
    for index, message in enumerate(getattr(body, "messages", None) or ()):
        if isinstance(message, MutableMapping):
            for field in _LAZY_FIELDS:
                _read(message, field, f"messages[{index}].{field}")
    for field in getattr(body, "model_fields_set", set()):
        if any(not _encodable(text) for text in _texts(getattr(body, field, None))):
            raise HTTPException(400, f"{field}: the text holds characters that cannot be encoded (lone surrogates).")
    for field in getattr(body, "model_fields_set", set()) - _PROMPTS:
        if any(number not in _MSGPACK_INTEGERS for number in _integers(getattr(body, field, None))):
            raise HTTPException(400, f"{field}: numbers must fit into 64 bits.")
    tokens = getattr(body, "tokens", None)
    if isinstance(tokens, list) and any(token > _MAX_TOKEN_ID or token < 0 for token in tokens):
        raise HTTPException(400, f"tokens: ids must lie between 0 and {_MAX_TOKEN_ID}.")


def _integers(value: object) -> Iterator[int]:
    """Every integer anywhere in plain data."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _integers(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _integers(inner)


def _texts(value: object) -> Iterator[str]:
    """Every text anywhere in plain data. Lists of token ids, which are long, are passed over."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)) and not (value and isinstance(value[0], int)):
        for inner in value:
            yield from _texts(inner)


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read(message: MutableMapping[str, Any], field: str, path: str) -> None:
    value = message.get(field)
    if value is None or isinstance(value, (str, list)) or not isinstance(value, Iterable):
        return
    try:
        message[field] = list(value)
    except ValueError:
        raise HTTPException(400, f"{path}: not a list of valid parts.") from None
