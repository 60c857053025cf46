"""What pydantic has against a tree of settings, told in terms of the YAML that it was read from."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from app.errors import Loc
from app.names import hint


def follows(detail: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """pydantic drops an item that it refuses from its list and then complains that the list is too short."""
    inside = [other["loc"] for other in details if other["loc"][: len(detail["loc"])] == detail["loc"]]
    return detail["type"] == "too_short" and len(inside) > 1


# What pydantic says in terms of Python's types, said in terms of YAML's.
_PLAIN = {
    "missing": "is required",
    "model_type": "must be a mapping of keys to values",
    "dict_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list",
    "too_short": "must have at least one item",
    "string_type": "must be a text",
    "path_type": "must be a path",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a number of less than 4300 digits",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
}
_SECRET = "key"


def explain(detail: ErrorDetails, root: type[BaseModel]) -> str:
    """One line for one problem in a tree of `root`."""
    loc, kind = detail["loc"], detail["type"]
    if loc and loc[-1] == "[key]":
        loc, kind = loc[:-1], "invalid_key"
    path = _path(loc)
    if kind == "extra_forbidden":
        return f"{path}: unknown key; {hint(str(loc[-1]), _section_at(root, loc[:-1]).model_fields)}"
    if kind == "invalid_key":
        return f"{path}: keys must be texts: put it in quotes"
    message = _PLAIN.get(kind) or re.sub(
        "^(Input|String) should ", "must ", detail["msg"].removeprefix("Value error, ")
    )
    if kind not in ("missing", "too_short", "value_error") and loc[-1:] != (_SECRET,):
        message += f", not {as_yaml(detail['input'])}"
    if kind == "string_type" and isinstance(detail["input"], (bool, int, float)):
        message += ": put it in quotes"
    return f"{path}: {message}" if path else message


def as_yaml(value: object) -> str:
    """A value as it stands in the file; of a large one what it is."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


_SHOWN = 60


def types_in(annotation: Any) -> Iterator[Any]:
    """The types in an annotation, without what is around them."""
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for one in inner:
        yield from types_in(one)


def _path(loc: Loc) -> str:
    parts = (
        f"[{part}]" if type(part) is int else f".{as_yaml(part) if isinstance(part, bool) else part}" for part in loc
    )
    return "".join(parts).removeprefix(".")


def _section_at(root: type[BaseModel], loc: Loc) -> type[BaseModel]:
    """The section of the tree that `loc` leads to; positions in lists and types of unions are passed over."""
    section = root
    for part in loc:
        field = section.model_fields.get(str(part))
        found = section_in(field.annotation) if field else None
        section = found or section
    return section


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The first in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if found := section_in(inner):
            return found
    return None
