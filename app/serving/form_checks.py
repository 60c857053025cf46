"""What a request asks of the form of its answer (structured output, beams): what would end an engine is refused here.
Pure.

vLLM turns a schema into a grammar, with a second library where the first does not take it. That one makes a symbol of
every item that there must or may be: 0.2 KiB and 0.5 us each at least, so that a schema of one line takes a node's
memory (measured: `{"type": "array", "minItems": 1000000000}` had Ray's memory monitor kill a cache server and Serve's
controller beside the replica).
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from app.serving.request_checks import FieldError

MAX_ITEMS: Final = 100_000
_COUNTS = frozenset({"minItems", "maxItems", "minProperties", "maxProperties"})
_FORMS = ("structured_outputs", "response_format", "tools")
# Lengths are raised to its power: 2 is much, and 1e30 is an OverflowError in the replica.
_LENGTH_PENALTY: Final = 16.0


def check_form(body: Any) -> None:
    """Raises FieldError: 400, with the field and what is too large in it."""
    for field in _FORMS:
        if (value := getattr(body, field, None)) is not None:
            _check_counts(field, value)
    penalty = getattr(body, "length_penalty", None)
    if isinstance(penalty, float) and not abs(penalty) <= _LENGTH_PENALTY:
        raise FieldError("length_penalty", f"from -{_LENGTH_PENALTY:g} to {_LENGTH_PENALTY:g}, not {penalty:g}.")


def asks_for_form(body: Any) -> bool:
    """Whether the engine makes a grammar for this request."""
    kind = getattr(getattr(body, "response_format", None), "type", "text")
    tools = getattr(body, "tools", None) and getattr(body, "tool_choice", None) not in (None, "none", "auto")
    return bool(getattr(body, "structured_outputs", None) or kind != "text" or tools)


def refused_form() -> FieldError:
    """Of a request whose grammar no engine could use."""
    return FieldError(
        "structured_outputs",
        "the engine can make nothing of this grammar: is a rule in it empty, or without an end?",
    )


def _check_counts(field: str, value: object) -> None:
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            stack.append(_parsed(value))
        elif isinstance(value, (list, tuple)):
            stack.extend(value)
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                if key in _COUNTS and isinstance(inner, (int, float)) and inner > MAX_ITEMS:
                    raise FieldError(field, f"{key} may be {MAX_ITEMS} at most, not {inner:g}.")
                stack.append(inner)
        elif hasattr(value, "__dict__"):  # pydantic's models, and vLLM's dataclasses
            stack.append(vars(value))


def _parsed(text: str) -> object:
    """Schemas may stand in a text: what is no JSON is for vLLM to judge."""
    if not any(count in text for count in _COUNTS):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
