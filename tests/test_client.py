"""The SDK on a handle that answers without a cluster: requests, answers, streams, and refusals as ServingError."""

from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel
from ray.exceptions import ActorDiedError
from ray.serve.llm.openai_api_models import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    CompletionRequest,
    CompletionResponse,
    ErrorResponse,
)
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, PromptTokenUsageInfo, UsageInfo

from app import client_request
from app.cache_report import CacheReport
from app.client import Client
from app.errors import ServingError

USAGE = UsageInfo(
    prompt_tokens=10,
    prompt_tokens_details=PromptTokenUsageInfo(
        cached_tokens=6, l0_tokens=6, l1_tokens=0, l2_tokens=0, computed_tokens=4, replica="r"
    ),
)
CHAT = ChatCompletionResponse(
    model="m",
    choices=[{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    usage=USAGE,
)
TEXT = CompletionResponse(model="m", choices=[{"index": 0, "text": "Hello", "finish_reason": "length"}], usage=USAGE)
REFUSED = ErrorResponse(error=ErrorInfo(message="The prompt is too long.", type="BadRequestError", code=400))


class Responses:
    """What a handle's streaming call gives: an iterator and an async one."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for item in self._items:
            yield item


class Handle:
    def __init__(self, *items: Any) -> None:
        self.asked: list[tuple[str, Any, Any]] = []
        self._items = list(items)
        self.responses: list[Responses] = []

    def options(self, **options: Any) -> "Handle":
        assert options == {"stream": True}
        return self

    def __getattr__(self, method: str) -> Any:
        def remote(request: Any, info: Any) -> Responses:
            self.asked.append((method, request, info))
            self.responses.append(Responses(self._items))
            return self.responses[-1]

        return SimpleNamespace(remote=remote)


def test_a_chat() -> None:
    handle = Handle(CHAT)
    answer = Client(handle, "m").chat("Hi", max_tokens=3)
    assert (answer.text, answer.finish_reason) == ("Hello", "stop")
    assert answer.report == CacheReport(6, 0, 4, 0, 0, "r")
    method, request, info = handle.asked[0]
    assert (method, request.model, request.max_tokens, info) == ("chat", "m", 3, None)
    assert request.messages[0]["content"] == "Hi"


def test_a_completion_of_text_or_token_ids() -> None:
    for prompt in ("Hi", [1, 2, 3]):
        handle = Handle(TEXT)
        answer = Client(handle, "m").complete(prompt)
        assert (answer.text, answer.finish_reason) == ("Hello", "length")
        assert handle.asked[0][1].prompt == prompt


def test_every_choice_has_its_text() -> None:
    choices = [{"index": at, "message": {"role": "assistant", "content": text}} for at, text in enumerate(["a", None])]
    answer = Client(Handle(ChatCompletionResponse(model="m", choices=choices, usage=USAGE)), "m").chat("Hi", n=2)
    assert (answer.text, answer.texts) == ("a", ("a", ""))
    assert Client(Handle(TEXT), "m").complete("Hi").texts == ("Hello",)


async def test_the_same_on_an_event_loop() -> None:
    assert (await Client(Handle(CHAT), "m").achat("Hi")).text == "Hello"
    assert (await Client(Handle(TEXT), "m").acomplete("Hi")).text == "Hello"


STREAM = [
    ['data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n', 'data: {"choices":[{"delta":{"content":"Hel"}}]}\n\n'],
    'data: {"choices":[{"delta":{"content":"lo"}}]}\n\n',
    ['data: {"choices":[],"usage":{}}\n\n', "data: [DONE]\n\n"],
]


async def test_a_stream_is_the_texts_pieces() -> None:
    assert list(Client(Handle(*STREAM), "m").stream("Hi")) == ["Hel", "lo"]
    assert [piece async for piece in Client(Handle(*STREAM), "m").astream("Hi")] == ["Hel", "lo"]


async def test_who_leaves_a_stream_ends_its_request_and_who_reads_it_all_does_not() -> None:
    handle = Handle(*STREAM)
    client = Client(handle, "m")
    assert list(client.stream("Hi")) == ["Hel", "lo"]
    left = client.stream("Hi")
    assert next(left) == "Hel"
    left.close()  # type: ignore[attr-defined]
    async_left = client.astream("Hi")
    assert await anext(async_left) == "Hel"
    await async_left.aclose()  # type: ignore[attr-defined]
    assert [responses.cancelled for responses in handle.responses] == [0, 1, 1]


def test_a_refusal_says_why() -> None:
    for call in (lambda c: c.chat("Hi"), lambda c: c.complete("Hi"), lambda c: list(c.stream("Hi"))):
        with pytest.raises(ServingError, match=r"^The prompt is too long\.$"):
            call(Client(Handle(REFUSED), "m"))


def test_an_error_within_a_stream() -> None:
    with pytest.raises(ServingError, match="it broke"):
        list(Client(Handle(STREAM[0], 'data: {"error":{"message":"it broke"}}\n\n'), "m").stream("Hi"))


def test_a_lost_replica_is_told_as_such() -> None:
    class Lost(Handle):
        def __getattr__(self, method: str) -> Any:
            def remote(request: Any, info: Any) -> Responses:
                raise ActorDiedError

            return SimpleNamespace(remote=remote)

    for call in (lambda c: c.chat("Hi"), lambda c: c.complete("Hi"), lambda c: list(c.stream("Hi"))):
        with pytest.raises(ServingError, match="was lost: send it again"):
            call(Client(Lost(), "m"))
    dead = 'data: {"error":{"message":"EngineCore encountered an issue. See ..."}}\n\n'
    with pytest.raises(ServingError, match="was lost: send it again"):
        list(Client(Handle(STREAM[0], dead), "m").stream("Hi"))


@pytest.mark.parametrize("options", [{"max_tokens": "many"}, {"temperature": "hot"}])
def test_a_request_that_is_not_valid_is_not_sent(options: dict[str, Any]) -> None:
    handle = Handle(CHAT)
    with pytest.raises(ServingError, match=f"^the request is not valid: {next(iter(options))}: ") as caught:
        Client(handle, "m").chat("Hi", **options)
    assert "ChatCompletionRequest" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert handle.asked == []


def test_a_replica_is_named_in_the_header_that_the_router_reads() -> None:
    handle = Handle(CHAT)
    Client(handle, "m").on_replica("r2").chat("Hi")
    assert handle.asked[0][2].headers == {"x-tierserve-replica": "r2"}


def test_a_misspelt_option_is_refused_before_anything_is_sent() -> None:
    handle = Handle(CHAT)
    client = Client(handle, "m")
    calls = (client.chat, client.complete, client.stream, client.astream)
    for call in calls:
        with pytest.raises(
            ServingError, match=r"max_tokns: .*did you mean max_tokens\?.*extra_body=\{'max_tokns': ...\}"
        ):
            call("Hi", max_tokns=5)
    assert handle.asked == []


async def test_a_misspelt_option_is_refused_on_an_event_loop_too() -> None:
    handle = Handle(CHAT)
    client = Client(handle, "m")
    for call in (client.achat("Hi", temprature=1), client.acomplete("Hi", temprature=1)):
        with pytest.raises(ServingError, match=r"did you mean temperature\?"):
            await call
    assert handle.asked == []


def test_each_request_has_its_own_fields() -> None:
    Client(Handle(CHAT), "m").chat("Hi", max_completion_tokens=3)
    with pytest.raises(ServingError, match="max_completion_tokens: "):
        Client(Handle(TEXT), "m").complete("Hi", max_completion_tokens=3)


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest])
def test_every_field_of_the_servers_own_request_is_known(kind: type[BaseModel]) -> None:
    ours = {"model", "messages", "prompt", "stream"}
    problems = list(client_request._unknown(kind, dict.fromkeys(kind.model_fields.keys() - ours)))
    assert problems == []


def test_what_stands_in_extra_body_is_sent_known_or_not() -> None:
    handle = Handle(CHAT)
    Client(handle, "m").chat("Hi", max_tokens=5, extra_body={"store": True, "top_k": 3})
    request = handle.asked[0][1]
    assert (request.max_tokens, request.top_k, request.model_extra) == (5, 3, {"store": True})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"extra_body": [1]}, "extra_body: must be a mapping of fields to values, not list"),
        ({"stream": True}, "stream: is said by the method"),
        ({"extra_body": {"messages": []}}, "messages: goes in front of the options"),
        ({"model": "n"}, "model: is the client's"),
        ({"max_tokns": 5, "temprature": 1}, "max_tokns: .*temprature: "),
    ],
)
def test_what_an_option_cannot_say_is_refused(options: dict[str, Any], says: str) -> None:
    handle = Handle(CHAT)
    with pytest.raises(ServingError, match=says):
        Client(handle, "m").chat("Hi", **options)
    assert handle.asked == []
