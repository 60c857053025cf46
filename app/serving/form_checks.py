"""What a request asks of the form of its answer (structured output, tools, beams): what would end a replica, or keep it
from everybody else for long, is refused here. Pure.

vLLM turns schemas and expressions into grammars, which some schemas of one line make grow without end (docs/serving.md
has what was seen). The bounds are far above what answers have.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.serving.field_error import FieldError
from app.serving.json_body import MAX_DEPTH, nests_too_deep
from app.serving.plain_data import inner

MAX_ITEMS: Final = 100_000
"""Of a list or an object."""
MAX_VALUES: Final = 5_000
"""Of an `enum` or a choice: 5,000 take 0.1 s, 20,000 took 13 s of the engine's one thread for grammars."""
MAX_REPEATS: Final = 2_000
"""In a `pattern`: its time grows with the square (0.3 s), on the replica's event loop."""
MAX_EXPRESSION: Final = 50_000
"""Characters of an expression or a grammar."""
_EXPRESSIONS = frozenset({"pattern", "regex", "grammar"})
_VALUES = frozenset({"enum", "choice"})
_COUNTS = frozenset({"minItems", "maxItems", "minProperties", "maxProperties"})
_WATCHED = _EXPRESSIONS | _VALUES | _COUNTS
_REPEATS = re.compile(r"\{(\d+)?(?:,(\d+)?)?\}")
_GROUP = re.compile(r"\\.|[()]", re.S)
_FORMS = ("structured_outputs", "response_format", "tools")
_BRACKETS = ("[", "{")
# Lengths are raised to its power: 2 is much, and 1e30 is an OverflowError in the replica.
_LENGTH_PENALTY: Final = 16.0


def check_form(body: Any) -> None:
    """Raises FieldError: 400, with the field and what is too large in it."""
    for field in _FORMS:
        if (value := getattr(body, field, None)) is not None:
            for key, held in _pairs(field, value):
                if key in _WATCHED:
                    _check_pair(field, key, held)
    penalty = getattr(body, "length_penalty", None)
    if isinstance(penalty, float) and not abs(penalty) <= _LENGTH_PENALTY:
        raise FieldError("length_penalty", f"from -{_LENGTH_PENALTY:g} to {_LENGTH_PENALTY:g}, not {penalty:g}.")


def asks_for_form(body: Any) -> bool:
    """Whether the engine makes a grammar for this request."""
    kind = getattr(getattr(body, "response_format", None), "type", "text")
    tools = getattr(body, "tools", None) and getattr(body, "tool_choice", None) not in (None, "none", "auto")
    return bool(getattr(body, "structured_outputs", None) or kind != "text" or tools)


def _check_pair(field: str, key: object, value: object) -> None:
    if key in _COUNTS and isinstance(value, (int, float)) and value > MAX_ITEMS:
        raise FieldError(field, f"{key} may be {MAX_ITEMS} at most, not {min(value, 1e300):g}.")
    if key in _VALUES and isinstance(value, (list, tuple)) and len(value) > MAX_VALUES:
        raise FieldError(field, f"{key} may have {MAX_VALUES} values at most, not {len(value)}.")
    if key in _EXPRESSIONS and isinstance(value, str):
        if len(value) > MAX_EXPRESSION:
            raise FieldError(field, f"a {key} may have {MAX_EXPRESSION} characters at most, not {len(value)}.")
        if _groups(value) > MAX_DEPTH:
            raise FieldError(field, f"the groups of a {key} nest deeper than {MAX_DEPTH} levels.")
        if key == "pattern" and any(number > MAX_REPEATS for number in _repeats(value)):
            raise FieldError(
                field, f"a pattern may repeat something {MAX_REPEATS} times at most; maxLength bounds a text."
            )


def _pairs(field: str, value: object) -> Iterator[tuple[object, object]]:
    """Every key in a tree with its value, in schemas that stand in a text too."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            if value.startswith(_BRACKETS) or value[:1].isspace():
                stack.append(_parsed(field, value))
            continue
        if isinstance(value, Mapping):
            yield from value.items()
        stack.extend(inner(value))


def _parsed(field: str, text: str) -> object:
    """What is no JSON is for vLLM to judge."""
    if not text.lstrip().startswith(_BRACKETS):
        return None
    if nests_too_deep(text):
        raise FieldError(field, f"lists and objects nest deeper than {MAX_DEPTH} levels.")
    try:
        return json.loads(text)
    except ValueError:
        return None


def _groups(expression: str) -> int:
    """How deep they nest, at most: a library that recurses over two million ends the process."""
    deepest = depth = 0
    for bracket in _GROUP.findall(expression):
        depth += {"(": 1, ")": -1}.get(bracket, 0)
        deepest = max(deepest, depth)
    return deepest


def _repeats(pattern: str) -> Iterator[int]:
    for found in _REPEATS.finditer(pattern):
        # More digits than that are no smaller a number, and Python refuses to read very many.
        yield from (int(number[:9]) for number in found.groups() if number)
