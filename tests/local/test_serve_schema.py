"""Keys outside `args:` are those of Ray Serve's own schema, and typing errors in them are refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.errors import SettingsError
from app.local.serve_file import load_serve_file
from app.local.serve_schema import check_schema, unread_here

APPLICATION = {"name": "one", "import_path": "app.main:build", "args": {"models": [{"id": "a"}]}}


def check(directory: Path, application: dict[str, Any] | None = None, **top: Any) -> Path:
    path = directory / "serve.yaml"
    path.write_text(yaml.safe_dump({"applications": [APPLICATION | (application or {})], **top}))
    check_schema(load_serve_file(path))
    return path


def refusal(directory: Path, application: dict[str, Any] | None = None, **top: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        check(directory, application, **top)
    return [re.sub(r"^.*serve\.yaml(, line \d+)?: ", "", line) for line in str(caught.value).splitlines()]


def test_every_shipped_file_passes(root: Path) -> None:
    for path in (root / "serve_configs").glob("*.yaml"):
        check_schema(load_serve_file(path))


def test_an_unknown_key_at_the_top(tmp_path: Path) -> None:
    assert refusal(tmp_path, http_option={"port": 80}) == ["http_option: unknown key; did you mean http_options?"]


def test_an_unknown_key_of_an_application(tmp_path: Path) -> None:
    assert refusal(tmp_path, {"route_prefx": "/x"}) == [
        "applications[0].route_prefx: unknown key; did you mean route_prefix?"
    ]


def test_an_unknown_key_deeper(tmp_path: Path) -> None:
    assert refusal(tmp_path, http_options={"prot": 80}) == ["http_options.prot: unknown key; did you mean port?"]
    assert refusal(tmp_path, {"deployments": [{"name": "a", "num_replica": 2}]}) == [
        "applications[0].deployments[0].num_replica: unknown key; did you mean num_replicas?"
    ]


def test_a_key_like_no_other_lists_what_there_is(tmp_path: Path) -> None:
    (line,) = refusal(tmp_path, zzz=1)
    assert line.startswith("zzz: unknown key; valid here: applications, controller_options, ")


def test_each_is_a_line(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, {"nam": "x"}, proxy_locatio="HeadOnly", zzz=1)) == 3


def test_values_are_rays_to_judge(tmp_path: Path) -> None:
    assert refusal(tmp_path, proxy_location="Head") == [
        "proxy_location: Input should be 'Disabled', 'HeadOnly' or 'EveryNode'"
    ]
    assert refusal(tmp_path, {"logging_config": 5})[0].startswith("applications[0].logging_config: Input should be")


def test_what_is_inside_args_and_runtime_env_is_not_rays(tmp_path: Path) -> None:
    check(tmp_path, {"runtime_env": {"env_vars": {"A": "1"}}})


def test_what_a_local_run_does_not_read_is_named(tmp_path: Path) -> None:
    path = check(
        tmp_path,
        {"runtime_env": {"env_vars": {"A": "1"}}, "deployments": []},
        http_options={"port": 8000, "root_path": "/x"},
        proxy_location="HeadOnly",
        target_capacity=50,
    )
    assert unread_here(load_serve_file(path)) == [
        "target_capacity",
        "http_options.root_path",
        "applications[0].deployments",
        "applications[0].runtime_env",
    ]
