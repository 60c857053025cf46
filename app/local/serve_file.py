"""A `serve deploy` file, read the way Ray reads it, with our settings checked. Pure: no ray import."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.errors import Loc, SettingsError
from app.names import nearest
from app.settings import Settings, load_settings
from app.yaml_file import YamlFile, read_yaml

IMPORT_PATH = "app.main:build"
_EXAMPLE = "serve_configs/local.yaml"


@dataclass(frozen=True)
class AppEntry:
    name: str
    route_prefix: str
    settings: Settings
    args: Mapping[str, Any]


@dataclass(frozen=True)
class ServeFile:
    path: Path
    host: str
    port: int
    applications: tuple[AppEntry, ...]
    document: Mapping[str, Any] = field(repr=False)  # as it was read; app.local.serve_schema looks at the rest of it
    at: Callable[[Loc], str] = field(repr=False, compare=False)
    """The file and the line of what some keys lead to."""

    def on_port(self, port: int | None) -> "ServeFile":
        return self if port is None else replace(self, port=port)


def load_serve_file(path: Path) -> ServeFile:
    """Raises SettingsError, with the file, the line and the application named, for anything that would not deploy."""
    read = read_yaml(path)
    listed = _applications(read)
    host, port = _http(read)
    entries = tuple(_entry(read, index, entry) for index, entry in enumerate(listed))
    return ServeFile(path, host, port, entries, read.document, read.at)


def _applications(read: YamlFile) -> list[Any]:
    document = read.document
    if document is None:
        raise SettingsError(f"{read.path}: is empty; see {_EXAMPLE}")
    if not isinstance(document, dict):
        what = "a list" if isinstance(document, list) else repr(document)
        raise SettingsError(f"{read.path}: must be a mapping that has `applications:`, not {what}; see {_EXAMPLE}")
    if "applications" not in document and (near := nearest("applications", map(str, document))):
        raise SettingsError(f"{read.at((near,))}: no `applications:`; {near} is no key, did you mean applications?")
    if not document.get("applications"):
        raise SettingsError(f"{read.at(('applications',))}: no `applications:`, or none in it; see {_EXAMPLE}")
    if not isinstance(document["applications"], list):
        raise SettingsError(f"{read.at(('applications',))}: `applications:` must be a list; see {_EXAMPLE}")
    return document["applications"]


def _http(read: YamlFile) -> tuple[str, int]:
    options = read.document.get("http_options") or {}
    where = read.at(("http_options",))
    if not isinstance(options, dict):
        raise SettingsError(f"{where}: `http_options:` must be a mapping with host and port")
    port, host = options.get("port", 8000), options.get("host", "127.0.0.1")
    if type(port) is not int or not 0 < port < 65536:  # `true` is an int to Python
        where = read.at(("http_options", "port"))
        raise SettingsError(f"{where}: http_options.port must be a number from 1 to 65535, not {port!r}")
    if not isinstance(host, str) or not host.strip():
        where = read.at(("http_options", "host"))
        raise SettingsError(
            f"{where}: http_options.host must be an address of this machine, such as 127.0.0.1, not {host!r}"
        )
    return host, port


def _entry(read: YamlFile, index: int, entry: Any) -> AppEntry:
    here: Loc = ("applications", index)
    if not isinstance(entry, dict):
        where = read.at(here)
        raise SettingsError(
            f"{where}: each application must be a mapping with name, import_path and args, not {entry!r}"
        )
    name = str(entry.get("name", "default"))

    def place(loc: Loc) -> str:
        return f"{read.at((*here, *loc))}, application {name}: "

    if (path := entry.get("import_path")) != IMPORT_PATH:
        raise SettingsError(f"{place(('import_path',))}import_path is {path}, not {IMPORT_PATH}")
    args = entry.get("args") or {}
    settings = load_settings(args, lambda loc: place(("args", *loc)))
    prefix = entry.get("route_prefix") or "/"
    if not isinstance(prefix, str) or not prefix.startswith("/") or (prefix != "/" and prefix.endswith("/")):
        raise SettingsError(f"{place(('route_prefix',))}route_prefix must be / or like /name, not {prefix!r}")
    return AppEntry(name, prefix, settings, args)
