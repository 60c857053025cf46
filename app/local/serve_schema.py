"""A serve file against Ray Serve's own schema: which keys there are outside `args:`, and what their values may be.

Ray itself passes over keys that it does not know (so that old clusters take new files), and a typing error with them.
Imports ray (two seconds), so it comes after the checks that do not.
"""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from app.errors import Loc, SettingsError
from app.local.serve_file import ServeFile
from app.names import hint

# What `tierserve serve` does with a file is said by these alone; `serve deploy` reads the rest too.
_READ_HERE = {"applications", "http_options", "http_options.host", "http_options.port", "proxy_location"}
_READ_IN_APPLICATION = {"name", "import_path", "route_prefix", "args"}


def check_schema(file: ServeFile) -> None:
    """Raises SettingsError: one line for each key that Ray Serve does not have, and each value that it refuses."""
    from ray.serve.schema import ServeDeploySchema

    problems = list(_unknown(file.document, ServeDeploySchema, ()))
    if not problems:
        try:
            ServeDeploySchema.model_validate(dict(file.document))
        except ValidationError as error:
            problems = [(detail["loc"], _refused(detail)) for detail in error.errors(include_url=False)]
    if problems:
        raise SettingsError("\n".join(f"{file.at(loc)}: {line}" for loc, line in problems))


def unread_here(file: ServeFile) -> list[str]:
    """Paths of keys that `serve deploy` reads and a local run does not."""
    top = [key for key in file.document if key not in _READ_HERE]
    http = [f"http_options.{key}" for key in file.document.get("http_options") or {}]
    inside = [
        f"applications[{index}].{key}"
        for index, entry in enumerate(file.document["applications"])
        for key in entry
        if key not in _READ_IN_APPLICATION
    ]
    return [*top, *(path for path in http if path not in _READ_HERE), *inside]


def _unknown(value: Any, schema: type[BaseModel], loc: Loc) -> Iterator[tuple[Loc, str]]:
    """Where and a line, for each key in `value` that `schema`, or a schema inside it, does not have."""
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        here = (*loc, key)
        field = schema.model_fields.get(key)
        if field is None:
            yield here, f"{_path(here)}: unknown key; {hint(str(key), schema.model_fields)}"
        elif section := _section(field.annotation):
            items = enumerate(inner) if isinstance(inner, list) else [(None, inner)]
            for index, item in items:
                yield from _unknown(item, section, here if index is None else (*here, index))


def _section(annotation: Any) -> type[BaseModel] | None:
    """The schema in an annotation such as `Optional[X]` or `List[X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _section(inner))), None)


def _refused(detail: ErrorDetails) -> str:
    return f"{_path(detail['loc'])}: {detail['msg'].removeprefix('Value error, ')}"


def _path(loc: Loc) -> str:
    return "".join(f"[{part}]" if type(part) is int else f".{part}" for part in loc).removeprefix(".")
