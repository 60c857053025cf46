"""Engine arguments checked against the installed vLLM's own classes: their names, and the types of their values.

Only what vLLM is certain to refuse is refused. Values that its validators judge by platform or model, enums (which it
reads by name in some places and by value in others) and annotations that pydantic cannot build are left to the engine.
"""

import argparse
import dataclasses
import re
import sys
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from app.errors import SettingsError
from app.names import hint
from app.settings import ModelSettings

# Raised by validators, which may look at more than the value: not a matter of its type.
_JUDGED = {"value_error", "assertion_error"}


def check_engine_arguments(model: ModelSettings) -> None:
    """Needs no GPU.

    Raises:
        SettingsError: a line for each argument that vLLM does not have or whose value has a wrong type.
    """
    if problems := engine_problems(model):
        raise SettingsError("\n".join(map(str, problems)))


def engine_problems(model: ModelSettings) -> list[SettingsError]:
    """One for each argument, with its keys from the model's on."""
    problems = []
    for name, value in model.engine.items():
        if found := _problem(name, value):
            inside, what = found
            path = ("engine", name, *inside)
            problems.append(SettingsError(f"model {model.id}, {'.'.join(path)}: {what}", path))
    return problems


def in_numbers(engine: Mapping[str, Any]) -> dict[str, Any]:
    """`engine` with `16k`, `2G` and `auto` as the numbers that vLLM's command line makes of them; its Python classes,
    which Ray calls, take numbers only."""
    return {name: _number(name, value) for name, value in engine.items()}


def _number(name: str, value: Any) -> Any:
    from vllm.utils.argparse_utils import human_readable_int, human_readable_int_or_auto

    annotation = _annotations().get(name)
    if not isinstance(value, str) or annotation not in (int, int | None):
        return value
    try:
        return human_readable_int_or_auto(value) if name == "max_model_len" else human_readable_int(value)
    except (ValueError, argparse.ArgumentTypeError):
        return value  # refused by the check


_Problem = tuple[tuple[str, ...], str]
"""The keys inside a value that lead to what is wrong, and what it is."""


def _problem(name: str, value: Any) -> _Problem | None:
    if name not in _annotations():
        return (), f"vLLM has no such argument; {_near(name)}"
    annotation = _annotations()[name]
    if value is None or annotation is None or _left_to_vllm(annotation, value):
        return None
    try:
        TypeAdapter(annotation).validate_python(_number(name, value))
    except ValidationError as error:
        details = [one for one in error.errors(include_url=False) if one["type"] not in _JUDGED]
        # A union is refused once for each of its members: the first says enough.
        return _told(details[0]) if details else None
    except Exception:
        return None  # no verdict
    return None


def _near(name: str) -> str:
    found = hint(name, _annotations())
    return found if found.startswith("did you mean") else "see `vllm serve --help`"


def _told(detail: ErrorDetails) -> _Problem:
    # Names of types that a union tried stand among the keys, with brackets or capitals.
    parts = [str(part) for part in detail["loc"]]
    keys = tuple(part for part in parts if part.isidentifier() and part.islower() and part not in _TYPE_NAMES)
    if detail["msg"] == "Unexpected keyword argument":
        return keys, "vLLM has no such key here"
    expected = _EXCUSES.sub("", detail["msg"].removeprefix("Input "))
    return keys, f"{expected[0].lower()}{expected[1:]}, not {detail['input']!r}"


_EXCUSES = re.compile(", (unable to|got a) .*")
_TYPE_NAMES = {"int", "str", "bool", "float", "list", "dict", "none", "literal", "constrained"}


def _left_to_vllm(annotation: Any, value: Any) -> bool:
    if isinstance(annotation, type):
        by_name = issubclass(annotation, Enum)
        return by_name or (dataclasses.is_dataclass(annotation) and not isinstance(value, dict))
    return any(_left_to_vllm(inner, value) for inner in get_args(annotation))


@cache
def _annotations() -> Mapping[str, Any]:
    """Argument -> its type, or None where it cannot be had. Imports vLLM (seconds)."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    return {
        field.name: _annotation(cls, field)
        for cls in (FrontendArgs, AsyncEngineArgs)
        for field in dataclasses.fields(cls)
    }


def _annotation(cls: type, field: "dataclasses.Field[Any]") -> Any:
    if not isinstance(field.type, str):
        return field.type
    owner = next(base for base in cls.__mro__ if field.name in vars(base).get("__annotations__", {}))
    try:
        return eval(field.type, vars(sys.modules[owner.__module__]))
    except NameError:  # imported for type checkers only
        return None
