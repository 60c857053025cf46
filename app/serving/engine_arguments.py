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
    problems = [f"model {model.id}, {line}" for item in model.engine.items() for line in _problems(*item)]
    if problems:
        raise SettingsError("\n".join(problems))


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


def _problems(name: str, value: Any) -> list[str]:
    if name not in _annotations():
        return [f"engine.{name}: vLLM has no such argument; {_near(name)}"]
    annotation = _annotations()[name]
    if value is None or annotation is None or _left_to_vllm(annotation, value):
        return []
    try:
        TypeAdapter(annotation).validate_python(_number(name, value))
    except ValidationError as error:
        details = [one for one in error.errors(include_url=False) if one["type"] not in _JUDGED]
        # A union is refused once for each of its members: the first says enough.
        return [_line(name, details[0]["loc"], details[0]["msg"], details[0]["input"])] if details else []
    except Exception:
        return []  # no verdict
    return []


def _near(name: str) -> str:
    found = hint(name, _annotations())
    return found if found.startswith("did you mean") else "see `vllm serve --help`"


def _line(name: str, loc: tuple[int | str, ...], message: str, value: Any) -> str:
    # Names of types that a union tried stand among the keys, with brackets or capitals.
    keys = [str(part) for part in loc if str(part).isidentifier() and str(part).islower() and part not in _TYPE_NAMES]
    path = ".".join(["engine", name, *keys])
    if message == "Unexpected keyword argument":
        return f"{path}: vLLM has no such key here"
    expected = _EXCUSES.sub("", message.removeprefix("Input "))
    return f"{path}: {expected[0].lower()}{expected[1:]}, not {value!r}"


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
