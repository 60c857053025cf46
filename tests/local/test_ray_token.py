"""Token mode is asked for where there is a token, and nobody's own choice is overruled."""

from pathlib import Path

import pytest

from app.local.ray_token import use_ray_token


@pytest.fixture(autouse=True)
def home_without_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_without_a_token_nothing_is_asked_for() -> None:
    environment: dict[str, str] = {}
    assert use_ray_token(environment) is False
    assert environment == {}


def test_the_token_that_ray_start_makes(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    environment: dict[str, str] = {}
    assert use_ray_token(environment) is True
    assert environment == {"RAY_AUTH_MODE": "token"}


def test_a_token_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    assert use_ray_token({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}) is True
    assert use_ray_token({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}) is False
    assert use_ray_token({"RAY_AUTH_TOKEN": "secret"}) is True
    assert use_ray_token({"RAY_AUTH_TOKEN": ""}) is False


def test_a_mode_that_was_set_stands() -> None:
    environment = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "secret"}
    assert use_ray_token(environment) is False
    assert environment["RAY_AUTH_MODE"] == "disabled"
    assert use_ray_token({"RAY_AUTH_MODE": "token"}) is True
