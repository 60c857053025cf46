"""An adapter's copy for one replica, and the name of its KV."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import HTTPException
from ray.serve.llm import LLMConfig

from app.kv_salt import adapter_identity
from app.serving.adapter_loader import AdapterLoader

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights", "optimizer.pt": b"large"}


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    for name in ("one", "same", "two"):
        (tmp_path / "adapters" / name).mkdir(parents=True)
        for file, content in FILES.items():
            (tmp_path / "adapters" / name / file).write_bytes(content)
    (tmp_path / "adapters" / "two" / "adapter_model.safetensors").write_bytes(b"others")
    return tmp_path / "adapters"


@pytest.fixture
def loader(adapters: Path) -> Iterator[AdapterLoader]:
    made = AdapterLoader(adapters)
    yield made
    made.close()


async def load(loader: AdapterLoader, model: str, config: Any = None) -> Path:
    loaded = await loader.load_model_from_config(model, config)
    assert loaded.model_id == model
    assert loader.identity(model) == adapter_identity(model, loaded.local_path)
    return Path(loaded.local_path)


async def test_the_copy_holds_what_vllm_reads(loader: AdapterLoader) -> None:
    copy = await load(loader, "m:one")
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == {
        name: content for name, content in FILES.items() if name.startswith("adapter_")
    }


async def test_weights_have_a_name_of_their_own(loader: AdapterLoader) -> None:
    one, same, two = [await load(loader, f"m:{name}") for name in ("one", "same", "two")]
    assert one.name == same.name != two.name
    assert one != same
    assert len({loader.identity(f"m:{name}") for name in ("one", "same", "two")}) == 3


async def test_what_is_loaded_stays_what_it_was(loader: AdapterLoader, adapters: Path) -> None:
    before = await load(loader, "m:one")
    (adapters / "one" / "adapter_model.safetensors").write_bytes(b"retrained")
    assert await load(loader, "m:one") == before
    assert (before / "adapter_model.safetensors").read_bytes() == b"weights"
    later = AdapterLoader(adapters)
    assert (await load(later, "m:one")).name != before.name
    assert later.identity("m:one") != loader.identity("m:one")
    later.close()


@pytest.mark.parametrize("name", ["three", "", "../adapters/one", "."])
async def test_what_is_no_adapter_is_a_404(loader: AdapterLoader, name: str) -> None:
    with pytest.raises(HTTPException) as refused:
        await loader.load_model_from_config(f"m:{name}", None)
    assert refused.value.status_code == 404
    assert loader.identity(f"m:{name}") == ""


async def test_nothing_is_left(adapters: Path) -> None:
    loader = AdapterLoader(adapters)
    copy = await load(loader, "m:one")
    loader.close()
    assert not copy.exists()


async def test_from_a_bucket(s3: Any, loader: AdapterLoader) -> None:
    s3.create_bucket(Bucket="loader")
    for file, content in FILES.items():
        s3.put_object(Bucket="loader", Key=f"adapters/one/{file}", Body=content)
    config = LLMConfig(
        model_loading_config={"model_id": "m", "model_source": "org/name"},
        lora_config={"dynamic_lora_loading_path": "s3://loader/adapters"},
    )
    of_bucket = AdapterLoader(None)
    copy = await load(of_bucket, "m:one", config)
    assert (copy / "adapter_model.safetensors").read_bytes() == b"weights"
    await load(loader, "m:one")
    assert of_bucket.identity("m:one") == loader.identity("m:one"), "the weights' name says nothing of where they lay"
    with pytest.raises(HTTPException) as refused:
        await of_bucket.load_model_from_config("m:three", config)
    assert refused.value.status_code == 404
    of_bucket.close()
