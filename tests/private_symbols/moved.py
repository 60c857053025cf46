"""What the tests of private names say, and how they look at a signature."""

import inspect
from collections.abc import Callable
from typing import Any


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def moved(what: str, file: str) -> str:
    return f"{what} moved: {file} depends on it"
