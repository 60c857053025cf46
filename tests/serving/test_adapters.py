"""Which adapters there are: in a directory, and in a bucket that moto plays."""

from pathlib import Path
from typing import Any

import pytest

from app.serving.adapters import Adapters, adapters_of
from app.settings import LoraSettings

NAMES = ("one", "two:v3")


@pytest.fixture(params=["directory", "bucket"])
def adapters(request: pytest.FixtureRequest, tmp_path: Path, s3: Any) -> Adapters:
    s3.create_bucket(Bucket="models")
    files = [*(f"{name}/adapter_config.json" for name in NAMES), "readme.txt", ".git/adapter_config.json"]
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}")
        s3.put_object(Bucket="models", Key=f"adapters/{file}", Body=b"{}")
    return adapters_of(LoraSettings(path=str(tmp_path) if request.param == "directory" else "s3://models/adapters/"))


async def test_every_folder_is_one(adapters: Adapters) -> None:
    assert await adapters.names() == sorted(NAMES)
    for name in NAMES:
        assert await adapters.has(name), name


@pytest.mark.parametrize("name", ["", "three", ".git", "..", "one/", "../adapters/one", "one/../one", "a" * 200, "\0"])
async def test_nothing_else_is(adapters: Adapters, name: str) -> None:
    assert not await adapters.has(name)


async def test_a_directory_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert await adapters_of(LoraSettings(path=str(tmp_path / "nowhere"))).names() == []
