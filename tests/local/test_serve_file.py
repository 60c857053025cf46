"""What would not deploy is refused with the file and the application named; nothing but a SettingsError leaves."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.errors import SettingsError
from app.local.serve_file import load_serve_file

APPLICATION = {"name": "one", "import_path": "app.main:build", "args": {"models": [{"id": "a"}]}}


def write(directory: Path, document: Any) -> Path:
    path = directory / "serve.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(SettingsError) as caught:
        load_serve_file(path)
    assert all(line.startswith(str(path)) for line in str(caught.value).splitlines())
    return str(caught.value).removeprefix(f"{path}")


def test_the_file_that_make_serve_deploys(root: Path) -> None:
    file = load_serve_file(root / "serve_configs" / "local.yaml")
    assert [(entry.name, entry.route_prefix) for entry in file.applications] == [("tierserve", "/")]
    assert (file.host, file.port) == ("127.0.0.1", 8000)
    assert file.on_port(9000).port == 9000
    assert file.on_port(None) is file


def test_every_shipped_file_loads(root: Path) -> None:
    files = sorted((root / "serve_configs").glob("*.yaml"))
    assert files
    for path in files:
        load_serve_file(path)


def test_defaults_are_rays(tmp_path: Path) -> None:
    entry = {key: value for key, value in APPLICATION.items() if key != "name"}
    file = load_serve_file(write(tmp_path, {"applications": [entry]}))
    assert (file.host, file.port) == ("127.0.0.1", 8000)
    assert (file.applications[0].name, file.applications[0].route_prefix) == ("default", "/")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", ": is empty; see serve_configs/local.yaml"),
        ("[1, 2]", ": must be a mapping that has `applications:`, not a list"),
        ("x: 1\naplications: []", ", line 2: no `applications:`; aplications is no key, did you mean applications?"),
        ("applications: []", ", line 1: no `applications:`, or none in it"),
        ("applications: {name: a}", ", line 1: `applications:` must be a list"),
        ("applications: [1]", ", line 1: each application must be a mapping"),
        ("a: [", ", line 1: not valid YAML: "),
        (
            "applications: [{name: one, import_path: other:app}]",
            ", line 1, application one: import_path is other:app, not",
        ),
        ("applications: [{name: one}]", ", line 1, application one: import_path is None"),
        (
            "applications: [{name: one, import_path: 'app.main:build'}]",
            ", line 1, application one: models: is required",
        ),
        (
            "applications: [{name: one, import_path: 'app.main:build', args: [1]}]",
            ", line 1, application one: args: must be a",
        ),
    ],
)
def test_a_wrong_document(tmp_path: Path, document: str, message: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(document)
    with pytest.raises(SettingsError) as caught:
        load_serve_file(path)
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize("port", [0, -1, 65536, "8000x", True, 80.5, [80]])
def test_a_wrong_port(tmp_path: Path, port: Any) -> None:
    path = write(tmp_path, {"http_options": {"port": port}, "applications": [APPLICATION]})
    assert refusal(path) == f", line 8: http_options.port must be a number from 1 to 65535, not {port!r}"


@pytest.mark.parametrize("prefix", ["x", "/x/", 5])
def test_a_wrong_route_prefix(tmp_path: Path, prefix: Any) -> None:
    path = write(tmp_path, {"applications": [{**APPLICATION, "route_prefix": prefix}]})
    assert refusal(path) == f", line 7, application one: route_prefix must be / or like /name, not {prefix!r}"


def test_wrong_http_options(tmp_path: Path) -> None:
    path = write(tmp_path, {"http_options": ["port"], "applications": [APPLICATION]})
    assert refusal(path).startswith(", line 7: `http_options:` must be a mapping")


def test_each_wrong_setting_is_a_line_with_file_and_application(tmp_path: Path) -> None:
    broken = {**APPLICATION, "args": {"models": [{"id": "a", "replica": 2, "l1": {"gb": 1}}]}}
    path = write(tmp_path, {"applications": [APPLICATION, {**broken, "name": "two"}]})
    said = refusal(path).splitlines()
    assert len(said) == 2
    assert all(re.match(r", line \d+, application two: models\[0\]\.", line.removeprefix(str(path))) for line in said)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.yaml") == ": cannot be read (No such file or directory)"
    assert "cannot be read" in refusal(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\xd8")
    assert refusal(binary).startswith(": is not a text in UTF-8")
