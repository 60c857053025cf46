"""The requests that the SDK sends. vLLM passes over fields that it does not know, and a typing error with them: here
they are refused before anything is sent. Which fields there are is asked of Ray Serve LLM's own request models.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest

from app.errors import ServingError
from app.names import nearest

Messages = str | Sequence[Mapping[str, Any]]

EXTRA = "extra_body"
"""Fields in a mapping under this option are sent whether they are known or not, as in the openai package."""

# What the caller says by which method is called, and with what in front of the options.
_OURS = {
    "model": "is the client's: name it in `connect`",
    "messages": "goes in front of the options",
    "prompt": "goes in front of the options",
    "stream": "is said by the method: call `stream` or `astream`",
}


def chat_request(model: str, messages: Messages, options: Mapping[str, Any], *, stream: bool) -> ChatCompletionRequest:
    """Raises ServingError for an option that the request does not have, or a value that it refuses."""
    listed = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    return _built(ChatCompletionRequest, options, model=model, messages=listed, stream=stream)


def completion_request(model: str, prompt: str | list[int], options: Mapping[str, Any]) -> CompletionRequest:
    """Raises ServingError as `chat_request` does."""
    return _built(CompletionRequest, options, model=model, prompt=prompt)


_Request = TypeVar("_Request", bound=BaseModel)


def _built(kind: type[_Request], options: Mapping[str, Any], **ours: Any) -> _Request:
    extra = options.get(EXTRA) or {}
    if not isinstance(extra, Mapping):
        raise _invalid(f"{EXTRA}: must be a mapping of fields to values, not {type(extra).__name__}")
    named = {name: value for name, value in options.items() if name != EXTRA}
    if problems := [*_taken({**named, **extra}), *_unknown(kind, named)]:
        raise _invalid("; ".join(problems))
    try:
        return kind(**{**named, **extra, **ours})
    except ValidationError as error:
        raise _invalid("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())) from None
    except ValueError as error:
        raise _invalid(str(error)) from error


def _taken(names: Mapping[str, Any]) -> Iterator[str]:
    return (f"{name}: {_OURS[name]}" for name in names if name in _OURS)


def _unknown(kind: type[BaseModel], names: Mapping[str, Any]) -> Iterator[str]:
    aliases = {field.alias for field in kind.model_fields.values() if field.alias}
    known = kind.model_fields.keys() | aliases
    for name in (name for name in names if name not in known | _OURS.keys()):
        near = nearest(name, [*known - _OURS.keys(), EXTRA])
        meant = f"did you mean {near}? " if near else ""
        yield (
            f"{name}: the model's server knows no such field and would pass over it; {meant}"
            f"to send it all the same: {EXTRA}={{{name!r}: ...}}"
        )


def _invalid(what: str) -> ServingError:
    return ServingError(f"the request is not valid: {what}")
