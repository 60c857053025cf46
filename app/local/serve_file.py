"""A `serve deploy` file, read the way Ray reads it, with our settings checked. Pure: no ray import."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from app.errors import SettingsError
from app.settings import Settings, load_settings

IMPORT_PATH = "app.main:build"


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

    def on_port(self, port: int | None) -> "ServeFile":
        return self if port is None else replace(self, port=port)


def load_serve_file(path: Path) -> ServeFile:
    """Raises SettingsError, with the file and the application named, for anything that would not deploy."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(document, dict) or not document.get("applications"):
        raise SettingsError(f"{path}: no `applications:`; see serve_configs/local.yaml")
    if not isinstance(document["applications"], list):
        raise SettingsError(f"{path}: `applications:` must be a list; see serve_configs/local.yaml")
    host, port = _http(path, document.get("http_options") or {})
    entries = tuple(_entry(path, entry) for entry in document["applications"])
    return ServeFile(path, host, port, entries, document)


def _http(path: Path, options: Any) -> tuple[str, int]:
    if not isinstance(options, dict):
        raise SettingsError(f"{path}: `http_options:` must be a mapping with host and port")
    port = options.get("port", 8000)
    if type(port) is not int or not 0 < port < 65536:  # `true` is an int to Python
        raise SettingsError(f"{path}: http_options.port must be a number from 1 to 65535, not {port!r}")
    return str(options.get("host") or "127.0.0.1"), port


def _entry(path: Path, entry: Any) -> AppEntry:
    if not isinstance(entry, dict):
        raise SettingsError(
            f"{path}: each application must be a mapping with name, import_path and args, not {entry!r}"
        )
    name = str(entry.get("name", "default"))
    if entry.get("import_path") != IMPORT_PATH:
        raise SettingsError(f"{path}, application {name}: import_path is {entry.get('import_path')}, not {IMPORT_PATH}")
    args = entry.get("args") or {}
    try:
        settings = load_settings(args)
    except SettingsError as error:
        lines = "\n".join(f"{path}, application {name}: {line}" for line in str(error).splitlines())
        raise SettingsError(lines) from None
    prefix = entry.get("route_prefix") or "/"
    if not isinstance(prefix, str) or not prefix.startswith("/") or (prefix != "/" and prefix.endswith("/")):
        raise SettingsError(f"{path}, application {name}: route_prefix must be / or like /name, not {prefix!r}")
    return AppEntry(name, prefix, settings, args)
