"""Placeholders in parsed YAML: `${path.to.value}`.

Substitution happens after parsing, so no value can change a file's structure. A string that is nothing but one
placeholder becomes the value itself, with its type (quotes around it change nothing); inside a longer string it becomes
text. An unknown placeholder is a broken file.
"""

import re
from collections.abc import Mapping
from typing import Any

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z0-9_.-]+)\}")


def fill(node: Any, values: Mapping[str, Any]) -> Any:
    """A copy of `node` with every placeholder replaced. Raises KeyError that names an unknown one."""
    if isinstance(node, dict):
        return {key: fill(value, values) for key, value in node.items()}
    if isinstance(node, list):
        return [fill(item, values) for item in node]
    if not isinstance(node, str):
        return node
    whole = _PLACEHOLDER.fullmatch(node)
    if whole:
        return _lookup(whole.group(1), values)
    return _PLACEHOLDER.sub(lambda match: str(_lookup(match.group(1), values)), node)


def _lookup(path: str, values: Mapping[str, Any]) -> Any:
    found: Any = values
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise KeyError(f"no value for ${{{path}}}")
        found = found[part]
    return found
