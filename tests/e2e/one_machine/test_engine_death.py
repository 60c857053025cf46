"""An engine that is killed: who had begun to read is told, everybody else is answered by the other replica."""

import asyncio
import json
import os
import signal
from typing import Any

import httpx

from tests.e2e.conftest import Served, wait_for

MODEL = "smollm2-135m-instruct"
ENGINE = "VLLM::EngineCore"


def body(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 4, **fields}


class Story:
    """A stream that goes on for long, read piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.begun = asyncio.Event()

    async def read(self, client: httpx.AsyncClient) -> None:
        request = body("Tell a long story.", max_tokens=2000, stream=True, ignore_eos=True)
        async with client.stream("POST", "/v1/chat/completions", json=request) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    self.pieces.append(line.removeprefix("data: "))
                    self.begun.set()


def processor_seconds(served: Served) -> dict[int, float]:
    engines = served.pids_of(ENGINE)
    return {process.pid: sum(process.cpu_times()[:2]) for process in served.tree() if process.pid in engines}


async def writer(served: Served, story: Story) -> int:
    """The engine that writes `story`: the one that is at work while more of it comes."""
    before, so_far = processor_seconds(served), len(story.pieces)
    while len(story.pieces) < so_far + 10:  # noqa: ASYNC110 - the reader has no event for it
        await asyncio.sleep(0.05)
    return max(before, key=lambda pid: processor_seconds(served)[pid] - before[pid])


async def test_others_are_answered_and_the_reader_is_told(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url, timeout=300) as client:
        story = Story()
        reading = asyncio.ensure_future(story.read(client))
        await asyncio.wait_for(story.begun.wait(), 60)
        victim = await asyncio.wait_for(writer(served, story), 60)

        async def ask(number: int) -> int:
            await asyncio.sleep(number * 0.2)
            return (await client.post("/v1/chat/completions", json=body(f"Say {number}."))).status_code

        asking = [asyncio.ensure_future(ask(number)) for number in range(30)]
        await asyncio.sleep(1)
        os.kill(victim, signal.SIGKILL)
        await asyncio.wait_for(reading, 60)
        assert await asyncio.gather(*asking) == [200] * 30
    assert "[DONE]" not in story.pieces
    error = json.loads(story.pieces[-1])["error"]
    assert error["type"] == "server_error"
    assert "lost in the middle" in error["message"]
    # The tests after this one find two replicas again.
    wait_for("the replica is back", lambda: "run again after" in served.output(), 180, every_s=0.5)
    assert "a replica is lost (1 of 2 run)" in served.output()
    assert "A worker died" not in served.output()
    assert len(served.pids_of(ENGINE)) == 2
    assert victim not in served.pids_of(ENGINE)
