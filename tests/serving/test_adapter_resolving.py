"""First requests for adapters, on Ray's own multiplexing and vLLM's own registry; only the engine is a stand-in."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException
from ray import serve
from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
from ray.serve import context, multiplex
from vllm.entrypoints.openai.models.serving import OpenAIServingModels

from app.serving.adapter_loader import AdapterLoader
from app.serving.server import TieredLLMServer
from app.serving.single_flight import SingleFlight


def configs_in(directory: str) -> list[str]:
    return [path.read_text() for path in Path(directory).rglob("adapter_config.json")]


class Engine:
    """Loads what it is asked to once the test lets it; one adapter of the name `bad` it refuses."""

    model_config = renderer = input_processor = None

    def __init__(self) -> None:
        self.added: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    async def add_lora(self, request: Any) -> bool:
        self.added.append(request.lora_name)
        if gate := self.gates.get(request.lora_name):
            await gate.wait()
        if any("bad" in text for text in configs_in(request.lora_path)):
            raise RuntimeError("rank too high")
        return True


class Replica(TieredLLMServer):
    def __init__(self, engine: Engine, directory: Path, most: int) -> None:
        self._resolving = SingleFlight()
        self._llm_config = SimpleNamespace(lora_config=object())
        self._adapters = AdapterLoader(directory)

        async def load(name: str) -> Any:
            return await loader.load_model_from_config(name, None)

        loader = self._adapters
        self._load_model = serve.multiplexed(max_num_models_per_replica=most)(load)
        self.engine = VLLMEngine.__new__(VLLMEngine)
        self.engine._oai_models = OpenAIServingModels(engine, base_model_paths=[])

    def __del__(self) -> None: ...  # type: ignore[override]

    async def resolve(self, adapter: str) -> None:
        with asking_for(adapter):
            await self._maybe_resolve_lora_from_multiplex()


@contextmanager
def asking_for(adapter: str) -> Iterator[None]:
    token = context._serve_request_context.set(context._RequestContext(multiplexed_model_id=adapter))
    yield
    context._serve_request_context.reset(token)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def replica(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replica]:
    """Keeps two adapters, as Ray counts; there are four."""
    inside = SimpleNamespace(app_name="app", deployment="d", replica_id="r")
    controller = SimpleNamespace(record_request_routing_info=lambda info: None)
    monkeypatch.setattr(multiplex, "_get_internal_replica_context", lambda: inside)
    monkeypatch.setattr(multiplex, "_get_global_client", lambda: controller)
    for name in ("one", "two", "three", "bad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(json.dumps({"is": name}))
    made = Replica(engine, tmp_path, most=2)
    yield made
    assert made._adapters is not None
    made._adapters.close()


async def until_asked(engine: Engine, adapter: str) -> None:
    async with asyncio.timeout(10):
        while adapter not in engine.added:  # noqa: ASYNC110 - copies are made in a thread
            await asyncio.sleep(0.001)


async def test_a_loaded_adapter_does_not_wait_for_one_that_is_loading(replica: Replica, engine: Engine) -> None:
    await replica.resolve("m:one")
    engine.gates["m:two"] = asyncio.Event()
    loading = asyncio.create_task(replica.resolve("m:two"))
    await until_asked(engine, "m:two")
    async with asyncio.timeout(10):
        await replica.resolve("m:one")
        await replica.resolve("m:three")
    assert not loading.done()
    engine.gates["m:two"].set()
    await loading
    assert engine.added == ["m:one", "m:two", "m:three"]


async def test_first_requests_at_once_load_it_once(replica: Replica, engine: Engine) -> None:
    engine.gates["m:one"] = asyncio.Event()
    asking = [asyncio.create_task(replica.resolve("m:one")) for _ in range(5)]
    await until_asked(engine, "m:one")
    engine.gates["m:one"].set()
    await asyncio.gather(*asking)
    assert engine.added == ["m:one"]
    assert len(replica._resolving) == 0


async def test_the_first_request_may_leave_while_it_loads(replica: Replica, engine: Engine) -> None:
    engine.gates["m:one"] = asyncio.Event()
    first, second = [asyncio.create_task(replica.resolve("m:one")) for _ in range(2)]
    await until_asked(engine, "m:one")
    first.cancel()
    engine.gates["m:one"].set()
    await second
    assert engine.added == ["m:one"], "vLLM would hold it twice"


async def test_one_that_ray_has_unloaded_comes_back(replica: Replica, engine: Engine) -> None:
    for name in ("one", "two", "three", "one", "one"):
        await replica.resolve(f"m:{name}")
    assert engine.added == ["m:one", "m:two", "m:three"], "vLLM has it still, and reads it again from the same copy"


async def test_a_refusal_is_told_to_all_and_keeps_nobody_else(replica: Replica, engine: Engine) -> None:
    outcomes = await asyncio.gather(*[replica.resolve("m:bad") for _ in range(3)], return_exceptions=True)
    assert [getattr(outcome, "status_code", None) for outcome in outcomes] == [400, 400, 400]
    with pytest.raises(HTTPException, match="no adapter nothing"):
        await replica.resolve("m:nothing")
    await replica.resolve("m:one")


async def test_one_that_was_refused_is_read_again_once_it_is_mended(replica: Replica, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(HTTPException, match="rank too high"):
            await replica.resolve("m:bad")
    (tmp_path / "bad" / "adapter_config.json").write_text("{}")
    await replica.resolve("m:bad")
    assert replica._adapters is not None
    assert configs_in(replica._adapters._copies.name) == ["{}"]


async def test_routers_are_told_of_none_but_those_that_ray_counts(replica: Replica) -> None:
    """Ray's wrapper forgets to take a name back that it loaded for another request: it must not be asked twice."""
    await asyncio.gather(*[replica.resolve("m:one") for _ in range(3)])
    await replica.resolve("m:two")
    await replica.resolve("m:three")
    wrapper = vars(replica._load_model.__wrapped__)["__serve_multiplex_wrapper"]
    assert sorted(wrapper._get_loading_and_loaded_model_ids()) == ["m:three", "m:two"]
