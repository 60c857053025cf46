"""A YAML file as Ray reads it (YAML 1.1, safe), with the line of each key, and without what YAML takes in silence: a
key that stands twice, of which the last wins, and numbers that are others than they look (`010` is 8, `1:30` is 90).
Pure.
"""

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from app.errors import Loc, SettingsError

_INT = "tag:yaml.org,2002:int"
_SURPRISING = re.compile(r"[-+]?(0[0-7_]+|[\d_]+(:[0-5]?\d)+)")


@dataclass(frozen=True)
class YamlFile:
    path: Path
    document: Any
    lines: Mapping[Loc, int]

    def at(self, loc: Loc) -> str:
        """The file, and the line of what `loc` leads to, or of the nearest thing around it."""
        known = (self.lines[loc[:end]] for end in range(len(loc), 0, -1) if loc[:end] in self.lines)
        line = next(known, None)
        return f"{self.path}" if line is None else f"{self.path}, line {line}"


def read_yaml(path: Path) -> YamlFile:
    """Raises SettingsError, in one line that names the file and, if there is one, the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not a text in UTF-8 (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        problems = list(_problems(root)) if root is not None else []
        document = yaml.safe_load(text) if not problems else None
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}{_told(error)}") from None
    except RecursionError:
        raise SettingsError(f"{path}: is nested too deeply") from None
    except ValueError as error:  # a date such as 2026-13-40
        raise SettingsError(f"{path}: has a value that cannot be read ({error}): put it in quotes") from None
    if problems:
        raise SettingsError("\n".join(f"{path}, {problem}" for problem in problems))
    return YamlFile(path, document, dict(_lines(root)) if root is not None else {})


def _told(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    what = " ".join(str(getattr(error, "problem", None) or error).split())
    where = f", line {mark.line + 1}" if mark is not None else ""
    if "'\\t'" in what:
        return f"{where}: a tab stands where YAML wants spaces: indent with spaces"
    if "another document" in what:
        return f"{where}: a second document begins (`---`): a file has one"
    return f"{where}: not valid YAML: {what}"


def _nodes(root: yaml.Node) -> Iterator[tuple[Loc, yaml.Node, int]]:
    """Each node once (an alias is a node that was there before): where it is, and the line of its key."""
    seen: set[int] = set()
    todo: list[tuple[Loc, yaml.Node, int]] = [((), root, root.start_mark.line + 1)]
    while todo:
        loc, node, line = todo.pop()
        yield loc, node, line
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            todo += [((*loc, str(key.value)), value, key.start_mark.line + 1) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            todo += [((*loc, index), item, item.start_mark.line + 1) for index, item in enumerate(node.value)]


def _lines(root: yaml.Node) -> Iterator[tuple[Loc, int]]:
    return ((loc, line) for loc, _, line in _nodes(root) if loc)


def _problems(root: yaml.Node) -> Iterator[str]:
    for _, node, _ in _nodes(root):
        if isinstance(node, yaml.MappingNode):
            yield from _twice(node)
        elif isinstance(node, yaml.ScalarNode) and node.tag == _INT and _SURPRISING.fullmatch(node.value):
            number = yaml.safe_load(node.value)
            yield (
                f"line {node.start_mark.line + 1}: {node.value} is {number} to YAML: write {number}, or put it in"
                " quotes if it is a text"
            )


def _twice(node: yaml.MappingNode) -> Iterator[str]:
    first: dict[Hashable, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
            continue
        line = key.start_mark.line + 1
        if (key.tag, key.value) in first:
            yield f"line {line}: `{key.value}` stands on line {first[key.tag, key.value]} too: leave one of them"
        first.setdefault((key.tag, key.value), line)
