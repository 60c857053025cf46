"""A stream that breaks says so in OpenAI's shape and does not claim to be whole."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from ray.exceptions import ActorDiedError

from app.serving.broken_stream import error_in, honest

TEXT = 'data: {"id":"1","choices":[{"delta":{"content":"data: {\\"error\\"} \\n"}}]}\n\n'
DONE = "data: [DONE]\n\n"


def event(code: int, message: str) -> str:
    error = {"message": message, "type": "InternalServerError", "param": None, "code": code}
    return f"data: {json.dumps({'error': error})}\n\n"


DEAD = event(500, "EngineCore encountered an issue. See stack trace (above) for the root cause.")


async def read(*pieces: Any) -> list[str]:
    async def stream() -> AsyncIterator[Any]:
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    return [piece async for piece in honest(stream())]


def last(pieces: list[str]) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(pieces[-1].removeprefix("data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_a_whole_stream_is_left_as_it_is() -> None:
    assert await read(TEXT, TEXT, DONE) == [TEXT, TEXT, DONE]


async def test_an_engine_that_dies_ends_it_without_done() -> None:
    said = await read(TEXT, DEAD, DONE)
    assert said[0] == TEXT
    assert len(said) == 2
    assert last(said)["type"] == "server_error"
    assert "EngineCore" not in said[1]


async def test_text_of_the_same_batch_still_arrives() -> None:
    said = await read(TEXT + DEAD + DONE)
    assert said[0] == TEXT
    assert "lost in the middle" in last(said)["message"]
    assert len(said) == 2


@pytest.mark.parametrize("error", [ActorDiedError(), ValueError("secret")])
async def test_a_replica_that_is_gone_ends_it_too(error: Exception) -> None:
    said = await read(TEXT, error)
    assert len(said) == 2
    assert "secret" not in last(said)["message"]


async def test_what_the_client_did_wrong_keeps_its_message() -> None:
    error = last(await read(TEXT, event(400, "The tool call does not parse."), DONE))
    assert (error["message"], error["type"]) == ("The tool call does not parse.", "invalid_request_error")
    assert "secret" not in last(await read(event(500, "secret")))["message"]


async def test_the_openai_package_raises_it() -> None:
    body = "".join(await read(TEXT, DEAD, DONE))

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=body, headers={"content-type": "text/event-stream"})

    transport = httpx.Client(transport=httpx.MockTransport(answer))
    client = openai.OpenAI(base_url="http://localhost/v1", api_key="none", http_client=transport, max_retries=0)  # type: ignore[arg-type]
    stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
    with pytest.raises(openai.APIError, match="lost in the middle"):
        list(stream)


def test_an_error_is_found_in_a_string_or_a_batch() -> None:
    assert error_in(DEAD) == error_in([TEXT, DEAD]) == DEAD.removeprefix("data: ").strip()
    assert error_in(TEXT) is None
    assert error_in([{"no": "text"}]) is None
    assert error_in(object()) is None
