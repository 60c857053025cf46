import json
from pathlib import Path
from typing import Any

import pytest

from app.errors import MachineError, ModelError
from app.local.paths import check_home, check_paths, notes_on_adapters, notes_on_space
from app.settings import Settings, load_settings


def with_pool(path: Path, **l2: Any) -> Settings:
    return load_settings({"models": [{"id": "m", "l2": {"path": str(path), **l2}}]})


def with_adapters(path: Path, **fields: Any) -> Settings:
    return load_settings({"models": [{"id": "m", "l2": {"enabled": False}, "lora": {"path": str(path)}, **fields}]})


def test_looking_at_a_pool_makes_nothing(tmp_path: Path) -> None:
    check_paths(with_pool(tmp_path / "a" / "b").models[0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_is_no_pool(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match=r"is a file\): give a writable directory"):
        check_paths(with_pool(tmp_path / path).models[0])


def test_a_pool_must_be_where_one_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that runs the tests may be root, who may write anywhere."""
    asked: list[Path] = []
    monkeypatch.setattr("os.access", lambda path, mode: asked.append(path))
    with pytest.raises(MachineError, match=f"{tmp_path} is not writable"):
        check_paths(with_pool(tmp_path / "a" / "b").models[0])
    assert asked == [tmp_path]


def test_too_little_room_for_a_pool_is_noted(tmp_path: Path) -> None:
    assert notes_on_space(with_pool(tmp_path / "a", capacity_gib=0.001)) == []
    [note] = notes_on_space(with_pool(tmp_path / "a", capacity_gib=1e9))
    assert note.startswith(f"l2.path {tmp_path / 'a'} has ")


def test_a_path_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        check_paths(
            load_settings({"models": [{"id": "m", "source": str(tmp_path), "l2": {"enabled": False}}]}).models[0]
        )


def test_ids_and_uris_are_nobodys_paths() -> None:
    for source in ("org/model", "s3://bucket/model", "demo"):
        check_paths(load_settings({"models": [{"id": "m", "source": source, "l2": {"enabled": False}}]}).models[0])


def adapter(directory: Path, config: str) -> Path:
    folder = directory / "one"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(config)
    return folder


def test_adapters_may_come_later_but_their_directory_is_there(tmp_path: Path) -> None:
    check_paths(with_adapters(tmp_path).models[0])
    with pytest.raises(ModelError, match=r"lora.path .* is not there: give the directory .*, or make it"):
        check_paths(with_adapters(tmp_path / "nowhere").models[0])


def test_a_file_is_no_directory_of_adapters(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"lora.path .* is a file: give the directory whose folders are adapters"):
        check_paths(with_adapters(tmp_path / "file").models[0])


def test_an_adapter_itself_is_no_directory_of_adapters(tmp_path: Path) -> None:
    folder = adapter(tmp_path, json.dumps({"r": 8}))
    with pytest.raises(ModelError, match=f"is itself an adapter: give the directory that it lies in, {tmp_path}$"):
        check_paths(with_adapters(folder).models[0])


def test_adapters_are_counted_and_folders_that_are_none_are_named_with_the_reason(tmp_path: Path) -> None:
    adapter(tmp_path, json.dumps({"r": 8}))
    for name in ("empty", "my adapter"):
        (tmp_path / name).mkdir()
    (tmp_path / "a file").write_text("")
    where = f"lora.path {tmp_path}:"
    assert notes_on_adapters(with_adapters(tmp_path)) == [
        f"{where} 1 adapter (one)",
        f"{where} empty is passed over, no adapter_config.json in it",
        f"{where} my adapter is passed over, its name is none for an adapter:"
        " letters, digits and . _ : - only, beginning with a letter or digit",
    ]


def test_of_many_folders_that_are_none_some_are_named(tmp_path: Path) -> None:
    for number in range(15):
        (tmp_path / f"f{number:02}").mkdir()
    lines = notes_on_adapters(with_adapters(tmp_path))
    assert lines[0].endswith(": 0 adapters")
    assert len(lines) == 12
    assert lines[-1].endswith(": 5 more folders are passed over")


def test_adapters_in_a_bucket_are_not_looked_for() -> None:
    assert notes_on_adapters(load_settings({"models": [{"id": "m", "lora": {"path": "s3://b/a"}}]})) == []


def test_an_adapter_that_is_wider_than_the_engine_is_told_with_the_remedy(tmp_path: Path) -> None:
    adapter(tmp_path, json.dumps({"r": 24}))
    with pytest.raises(ModelError, match=r"rank is 24, above 16: set `engine: {max_lora_rank: 32}`"):
        check_paths(with_adapters(tmp_path).models[0])
    check_paths(with_adapters(tmp_path, engine={"max_lora_rank": 32}).models[0])


@pytest.mark.parametrize("config", ["", "[]", "{}", '{"r": "8"}'])
def test_a_folder_that_is_no_adapter_of_pefts_is_told(tmp_path: Path, config: str) -> None:
    adapter(tmp_path, config)
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        check_paths(with_adapters(tmp_path).models[0])


def test_a_file_is_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TIERSERVE_HOME", str(tmp_path / "file"))
    with pytest.raises(MachineError, match=r"TIERSERVE_HOME .*/file cannot be used .* is a file"):
        check_home()
