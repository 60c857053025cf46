from pathlib import Path

import pytest

from app.errors import MachineError, ModelError
from app.local.paths import check_paths
from app.settings import load_settings


def test_a_pool_is_made_where_it_is_said_to_be(tmp_path: Path) -> None:
    check_paths(load_settings({"models": [{"id": "m", "l2": {"path": str(tmp_path / "a" / "b")}}]}))
    assert (tmp_path / "a" / "b").is_dir()


def test_a_file_is_no_pool(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="give a writable directory"):
        check_paths(load_settings({"models": [{"id": "m", "l2": {"path": str(tmp_path / "file")}}]}))


def test_a_path_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        check_paths(load_settings({"models": [{"id": "m", "source": str(tmp_path), "l2": {"enabled": False}}]}))


def test_ids_and_uris_are_nobodys_paths() -> None:
    for source in ("org/model", "s3://bucket/model", "demo"):
        check_paths(load_settings({"models": [{"id": "m", "source": source, "l2": {"enabled": False}}]}))
