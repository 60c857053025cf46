"""What a client asked for and cannot have, by the field that it stands in."""

from typing import Any

from starlette.exceptions import HTTPException


class FieldError(HTTPException):
    """The field at `path` in the body holds what no engine can serve."""

    code = "invalid_parameter"

    def __init__(self, path: str, message: str) -> None:
        super().__init__(400, f"{path}: {message}")
        self.param = path

    def __reduce__(self) -> tuple[Any, ...]:
        """Made anew from its two arguments where it arrives: it may be raised in a replica."""
        return FieldError, tuple(self.detail.split(": ", 1))
