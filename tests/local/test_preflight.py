"""What a file asks for and neither this machine nor Ray has: told before anything is started."""

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.errors import ModelError, SettingsError, TierserveError
from app.local.accelerators import check_accelerator
from app.local.preflight import check_file, check_here, check_keys
from app.local.serve_file import ServeFile, load_serve_file
from app.settings import ModelSettings, load_settings
from app.settings_auth import AuthSettings


def model(**fields: Any) -> ModelSettings:
    return load_settings({"models": [{"id": "m", **fields}]}).models[0]


def auth(**entry: Any) -> AuthSettings:
    return load_settings({"models": [{"id": "m"}], "auth": {"api_keys": [{"tenant": "a", **entry}]}}).auth


def test_a_key_that_the_environment_lacks_is_named_with_the_remedy() -> None:
    with pytest.raises(
        SettingsError, match=r"KEY_OF_A \(tenant a\) is not set here: export KEY_OF_A=\.\.\. before serving"
    ):
        check_keys(auth(key_env="KEY_OF_A"), {"KEY_OF_A": ""})
    check_keys(auth(key_env="KEY_OF_A"), {"KEY_OF_A": "12345678"})
    check_keys(auth(key="12345678"), {})


@pytest.mark.parametrize("accelerator", ["cpu", "gpu", "L40S"])
def test_accelerators_that_ray_has(accelerator: str) -> None:
    check_accelerator(model(accelerator=accelerator))


@pytest.mark.parametrize(
    ("accelerator", "says"), [("l40s", "did you mean L40S?"), ("L-40", "write cpu, gpu, or a type")]
)
def test_one_that_ray_has_not_is_told(accelerator: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_accelerator(model(accelerator=accelerator))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "check", "says"),
    [
        ("engine: {max_model_length: 1}", check_file, "line 8: model m, engine.max_model_length: vLLM has no such"),
        ("routing:\n            options: {nothing: 1}", check_file, "line 9: model m, routing.options: "),
        (
            "routing:\n            options:\n              half_life_s: -1",
            check_file,
            "line 10: model m, routing.options: half_life_s: ",
        ),
        (
            "engine:\n            compilation_config:\n              nothing: 1",
            check_file,
            "line 10: model m, engine.compilation_config.nothing: vLLM has no such key here",
        ),
        ("accelerator: l40s", check_file, "line 8: model m: accelerator: Ray has no type 'l40s'"),
        (
            "lora:\n            path: /nowhere/adapters",
            partial(check_here, room=False),
            "line 9: model m: lora.path /nowhere/adapters is not there",
        ),
        (
            "source: /nowhere/model",
            partial(check_here, room=False),
            "line 8: model m: source /nowhere/model is not a directory",
        ),
    ],
)
def test_what_a_check_finds_is_told_with_the_line_in_the_file(
    tmp_path: Path, fields: str, check: Callable[[ServeFile], None], says: str
) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        f"""
applications:
  - import_path: app.main:build
    args:
      models:
        - id: m
          num_cpus: 0
          {fields}
"""
    )
    with pytest.raises(TierserveError) as caught:
        check(load_serve_file(path))
    assert str(caught.value).startswith(f"{path}, {says}")


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        """
applications:
  - import_path: app.main:build
    args:
      models:
        - id: m
          accelerator: l40s
          engine: {max_model_length: 1, tensor_parallel: 2}
        - id: n
          routing: {options: {nothing: 1}}
"""
    )
    with pytest.raises(SettingsError) as caught:
        check_file(load_serve_file(path))
    lines = [line.removeprefix(f"{path}, ") for line in str(caught.value).splitlines()]
    assert [line.partition(":")[0] for line in lines] == ["line 7", "line 8", "line 8", "line 10"]


def test_an_error_keeps_what_it_is_about_across_processes() -> None:
    error = pickle.loads(pickle.dumps(ModelError("it is not there", ("lora", "path"))))
    assert (str(error), error.about) == ("it is not there", ("lora", "path"))
