"""The body of a request: strict JSON, or a refusal that says what is wrong and where. Pure.

Python's parser takes more than JSON has (NaN, keys twice, numbers that become infinite), and says less than a client
needs of what it does not take.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from fastapi import HTTPException

MAX_BYTES = 64 << 20
"""More than a request of OpenAI's with images may have (50 MB)."""
MAX_DEPTH = 100
"""What comes behind the parser (validation, templates, pickle) recurses; a deep tool's schema has about ten levels."""

MAX_FIELDS = 1_000
"""At the top: a million unknown ones keep an event loop for 13 s."""

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_BRACKETS = re.compile(_STRING + r"|[\[\]{}]", re.S)
_BRACKET = re.compile(r"[\[\]{}]")
_TOO_DEEP = f"cannot be read: lists and objects nest deeper than {MAX_DEPTH} levels"
_VALUES = re.compile(_STRING + r'|[^"\s,:\[\]{}]+', re.S)
_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}


class BodyError(HTTPException):
    """The body of a request is not what an endpoint can read."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_json") -> None:
        super().__init__(status, message)
        self.code = code


class _RefusedError(ValueError):
    """Raised by the parser's hooks, which do not know where they are: `literal` is what stands there."""

    def __init__(self, reason: str, literal: str | None = None) -> None:
        self.reason, self.literal = reason, literal


def parse_object(body: bytes, example: str) -> dict[str, Any]:
    """`body` as a JSON object. Raises BodyError; `example` is for who sent another kind of JSON."""
    text = _text(body)
    if nests_too_deep(text):
        raise _refusal(_TOO_DEEP, text, _too_deep_at(text))
    try:
        found = json.loads(text, parse_constant=_constant, parse_float=_finite, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise _refusal(f"is not valid JSON: {error.msg.removesuffix(' at')}", text, error.pos) from None
    except _RefusedError as refused:
        literal = refused.literal
        at = _where(text, lambda value: value == literal)
        raise _refusal(f"cannot be read: {refused.reason}", text, at) from None
    except ValueError:  # Python's own bound on the digits of a number
        at = _where(text, lambda value: value.lstrip("-").isdigit() and len(value) > 1000)
        raise _refusal("cannot be read: a number has too many digits", text, at) from None
    if isinstance(found, dict) and len(found) > MAX_FIELDS:
        raise BodyError(
            f"The body has {len(found)} fields; no request has more than {MAX_FIELDS}.", code="invalid_body"
        )
    if not isinstance(found, dict):
        kind = _KINDS.get(type(found), "a number")
        raise BodyError(f"The body must be a JSON object, not {kind}, for example {example}", code="invalid_body")
    return found


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = error.object[error.start]
        raise BodyError(f"The body is not valid UTF-8: byte 0x{wrong:02x} at offset {error.start}.") from None


def nests_too_deep(text: str) -> bool:
    """Whether JSON has more levels than `MAX_DEPTH`; found before anything recurses. Only a text with many brackets is
    looked through, and only at what lies outside of its strings: the odd pieces between quotation marks, without those
    that are escaped."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    depth = 0
    for bracket in _BRACKET.findall(outside):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def _too_deep_at(text: str) -> int | None:
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth += (found[0] in "[{") - (found[0] in "]}")
        if depth > MAX_DEPTH:
            return found.start()
    return None


def _where(text: str, is_it: Callable[[str], bool]) -> int | None:
    """Where the first value outside of strings begins that `is_it`."""
    return next((found.start() for found in _VALUES.finditer(text) if is_it(found[0])), None)


def _refusal(reason: str, text: str, at: int | None) -> BodyError:
    place = "" if at is None else f" at line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}"
    return BodyError(f"The body {reason}{place}.")


def _constant(literal: str) -> Any:
    raise _RefusedError(f"{literal} is no JSON number", literal)


def _finite(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise _RefusedError(f"{literal[:40]} is too large a number", literal)
    return value


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    pairs = list(pairs)
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _RefusedError(f"the key {json.dumps(again)[:100]} stands twice in one object")
    return made
