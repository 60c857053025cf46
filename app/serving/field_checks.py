"""What pydantic lets through although no engine can serve it: found here, where the client can still be told. Pure.

vLLM's request models validate some fields only when they are read (lists of content parts, tool calls), which happens
deep inside, where a failure is nobody's 400 any more. The messages name the field and say nothing of types.
"""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from app.serving.field_error import FieldError
from app.serving.plain_data import inner

# Tokenizers take 32-bit ids; what is larger raises out of the replica instead of being refused.
_MAX_TOKEN_ID = (1 << 31) - 1
_LAZY_FIELDS = ("content", "tool_calls")
# What is sent to the engine goes there in msgpack. Prompts do not: they are tokenised first.
_PROMPTS = {"messages", "prompt", "input", "text_1", "text_2", "tokens", "tools"}
_MSGPACK_INTEGERS = range(-(1 << 63), 1 << 64)
# What a connector is told by who transfers KV, which here are replicas and cache servers alone. LMCache's takes part of
# it into the names of chunks, and anything but a table of it is an exception in the engine's scheduler, which ends it.
_OF_CONNECTORS = ("kv_transfer_params", "ec_transfer_params")
# vLLM answers these without a JSON body, which Ray 2.60.0 expects.
_ENCODINGS_OF_PROXIES = ("bytes", "bytes_only")
# What vLLM calls a chat template with itself: a second of that name is a TypeError.
_OF_TEMPLATES = frozenset({"conversation", "model_config", "tokenizer"})
_UNENCODABLE = "the text holds characters that cannot be encoded (lone surrogates)."
_TOO_LARGE = "numbers must fit into 64 bits."


def check_fields(body: Any) -> None:
    """Read the lazy fields of `body` (mutated: they become lists) and refuse what cannot be read.

    Raises:
        FieldError: 400, with the path of the field.
    """
    messages = getattr(body, "messages", None)
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, MutableMapping):
            for field in _LAZY_FIELDS:
                _read(message, field, index)
    _check_transfer(body)
    _check_kinds(body)
    for field in getattr(body, "model_fields_set", set()):
        _check_plain(field, getattr(body, field, None))
    check_token_ids(getattr(body, "tokens", None), _MAX_TOKEN_ID)


def _check_transfer(body: Any) -> None:
    """Raises FieldError: a client tells the engine's connectors what to do."""
    extra = getattr(body, "vllm_xargs", None)
    extra = extra if isinstance(extra, Mapping) else {}
    for field in _OF_CONNECTORS:
        if getattr(body, field, None) is not None:
            raise FieldError(field, "KV is transferred by the server itself; leave it out.")
        if field in extra:
            raise FieldError(f"vllm_xargs.{field}", "KV is transferred by the server itself; leave it out.")


def _check_kinds(body: Any) -> None:
    """Raises FieldError: what vLLM's models let through and what reads it does not."""
    salt, encoding = getattr(body, "cache_salt", None), getattr(body, "encoding_format", None)
    if not isinstance(salt, str | None):
        raise FieldError("cache_salt", "a text.")
    if encoding in _ENCODINGS_OF_PROXIES:
        raise FieldError("encoding_format", "`float` or `base64`.")
    options = getattr(body, "chat_template_kwargs", None)
    if isinstance(options, Mapping) and (taken := sorted(_OF_TEMPLATES.intersection(options))):
        raise FieldError(f"chat_template_kwargs.{taken[0]}", "no template is given this by a client; leave it out.")


def check_token_ids(tokens: Any, highest: int, field: str = "tokens") -> None:
    """Raises FieldError: the first id that is not from 0 to `highest`. Whatever is no list of them passes."""
    if not isinstance(tokens, list) or set(map(type, tokens)) != {int} or (min(tokens) >= 0 and max(tokens) <= highest):
        return
    at, wrong = next((at, token) for at, token in enumerate(tokens) if not 0 <= token <= highest)
    raise FieldError(f"{field}[{at}]", f"{wrong} is no token id: they lie between 0 and {highest}.")


def _check_plain(field: str, value: object) -> None:
    if fault := _fault(value, is_sent=field not in _PROMPTS):
        raise FieldError(field, fault)


def _fault(value: object, *, is_sent: bool) -> str | None:
    """What is wrong with something in plain data, keys too; numbers matter only in what `is_sent`. One loop without
    calls or generators for the frequent kinds: it runs over every message of every request, on the event loop."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            if not value.isascii() and not _encodable(value):
                return _UNENCODABLE
        elif isinstance(value, (list, tuple)):
            if value and type(value[0]) is int is type(value[-1]):
                if not is_sent:
                    continue  # token ids, which are many
                if set(map(type, value)) == {int}:
                    value = (min(value), max(value))
            stack.extend(value)
        elif isinstance(value, (int, float)):
            if is_sent and isinstance(value, int) and value not in _MSGPACK_INTEGERS:
                return _TOO_LARGE
        elif isinstance(value, Mapping):
            stack.extend(value.values())
            if not "".join(map(str, value)).isascii():
                stack.extend(value)
        else:
            stack.extend(inner(value))
    return None


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read(message: MutableMapping[str, Any], field: str, index: int) -> None:
    value = message.get(field)
    if value is None or isinstance(value, (str, list)) or not isinstance(value, Iterable):
        return
    try:
        message[field] = list(value)
    except ValueError:
        raise FieldError(f"messages[{index}].{field}", "not a list of valid parts.") from None
