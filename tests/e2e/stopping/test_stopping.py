"""An application that is deleted while streams are under way: Serve, its proxy and the ingress are real; the replica
answers without an engine, for ever, so that nothing but the end of the grace can end a stream."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest
import ray
from ray import serve
from ray.llm._internal.serve.core.configs.openai_api_models import ModelCard

from app.serving.ingress import ingress_class
from app.serving.stopping import Stopping, ingress_options
from app.settings import load_settings
from app.tiers.cache_server import free_ports
from tests.e2e.conftest import ROOT, disconnect, wait_for

GRACE_S = 2.0
BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}


@serve.deployment(**ingress_options(GRACE_S))
class Endless:
    def __init__(self) -> None:
        self.stopping = Stopping(GRACE_S)

    async def chat(self, body: Any, info: Any = None) -> AsyncGenerator[str, None]:
        async def pieces() -> AsyncGenerator[str, None]:
            while True:
                yield 'data: {"choices": []}\n\n'
                await asyncio.sleep(0.1)

        async for piece in self.stopping.bounded(pieces()):
            yield piece


class Reader(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.lines, self.error = url, list[str](), None
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=BODY, timeout=120) as response:
            for line in response.iter_lines():
                if line:
                    self.lines.append(line)


@pytest.fixture
def url() -> Iterator[str]:
    environment = {"PYTHONPATH": str(ROOT)}
    ray.init(
        address="local", include_dashboard=False, log_to_driver=False, num_cpus=4, object_store_memory=100_000_000,
        runtime_env={"env_vars": environment},
    )  # fmt: skip
    port = free_ports(1)[0]
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    front = serve.deployment(
        ingress_class(load_settings({"models": [{"id": "m", "source": "demo"}]})), **ingress_options(GRACE_S)
    )
    card = ModelCard(id="m", object="model", owned_by="us", permission=[], metadata={})
    endless: Any = Endless
    application = front.bind(llm_deployments={"m": endless.bind()}, model_cards={"m": card}, grace_s=GRACE_S)
    serve.run(application, name="tierserve", route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    disconnect()


def test_streams_of_an_application_that_is_deleted_end_with_an_error(url: str) -> None:
    readers = [Reader(url) for _ in range(3)]
    wait_for("every stream has begun", lambda: all(reader.lines for reader in readers), 60)
    serve.delete("tierserve")
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
        last = json.loads(reader.lines[-1].removeprefix("data: "))
        assert last["error"]["type"] == "server_error"
        assert last["error"]["message"].endswith("Send the request again.")
        assert "data: [DONE]" not in reader.lines
