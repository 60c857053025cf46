"""What the replica adds to Ray's LLM server, without an engine: reports in answers and streams, and nothing kept."""

import asyncio
import gc
import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from starlette.exceptions import HTTPException
from vllm.entrypoints.serve.engine.protocol import UsageInfo
from vllm.exceptions import GenerationError

from app.cache_report import PromptTokens
from app.serving.field_error import FieldError
from app.serving.model_checks import ModelBounds
from app.serving.reporter import Reporter
from app.serving.server import TieredLLMServer
from app.serving.stopping import Stopping
from app.serving.stream_preface import ASKING_HEADER, take_preface
from app.tiers.events import Lookup

PROMPT = PromptTokens(total=200, local=64, external=128)


class Feed:
    """Lookups that are there, by internal id."""

    def __init__(self, lookups: dict[str, Lookup]) -> None:
        self.lookups = lookups

    def take(self, request_id: str, timeout_s: float = 0.0) -> Lookup | None:
        return self.lookups.pop(request_id, None)

    def peek(self, request_id: str) -> Lookup | None:
        return self.lookups.get(request_id)


class Replica(TieredLLMServer):
    """The real methods on parts that need no engine."""

    def __init__(self, lookups: dict[str, Lookup] | None = None) -> None:
        self._replica, self._adapters, self._stopping = "replica-1", None, Stopping(0.0)
        self._reporter = Reporter(self._replica, Feed(lookups or {}), lambda told: None)
        self._of_model = ModelBounds(token_ids=99, rows=100, characters=40, reads_media=False)

    def __del__(self) -> None: ...  # type: ignore[override]

    async def serve(self, request: Any, responses: list[Any], with_first: bool = False) -> list[Any]:
        async def engine(asked: Any, _: Any) -> AsyncGenerator[Any, None]:
            async def run() -> AsyncGenerator[Any, None]:
                self._reporter.prefilled("internal", f"chatcmpl-{asked.request_id}", PROMPT)
                for response in responses:
                    if isinstance(response, Exception):
                        raise response
                    yield response

            return run()

        asking = SimpleNamespace(headers={ASKING_HEADER: "1"} if with_first else {})
        stream = self._answer(request, await self._call(engine, request, None), asking)
        return [response async for response in stream]


def asks(**fields: Any) -> Any:
    return SimpleNamespace(request_id="the client's", **fields)


def whole() -> Any:
    return SimpleNamespace(usage=UsageInfo(prompt_tokens=200, total_tokens=201, completion_tokens=1))


def event(message: Any) -> str:
    return f"data: {json.dumps(message, separators=(',', ':'))}\n\n"


DETAILS = {
    "cached_tokens": 192,
    "l0_tokens": 64,
    "l1_tokens": 64,
    "l2_tokens": 64,
    "computed_tokens": 8,
    "replica": "replica-1",
}


async def test_a_whole_answer_carries_its_report() -> None:
    replica = Replica({"internal": Lookup(128, 128)})
    [response] = await replica.serve(asks(), [whole()])
    assert DETAILS.items() <= response.usage.prompt_tokens_details.model_dump().items()
    assert len(replica._reporter) == 0


async def test_a_lookup_that_did_not_arrive_leaves_the_split_open() -> None:
    [response] = await Replica().serve(asks(), [whole()])
    details = response.usage.prompt_tokens_details.model_dump()
    assert details["cached_tokens"] == 192
    assert "l1_tokens" not in details


@pytest.mark.parametrize("batched", [False, True])
async def test_a_streams_last_chunk_carries_its_report(batched: bool) -> None:
    text = event({"choices": [{"delta": {"content": '"usage":{ "choices":[]'}}]})
    last = event({"id": "x", "choices": [], "usage": {"prompt_tokens": 200}})
    sent: list[Any] = [[text, last], ["data: [DONE]\n\n"]] if batched else [text, last, "data: [DONE]\n\n"]
    request = asks(stream=True, stream_options=SimpleNamespace(include_usage=True))
    got = await Replica({"internal": Lookup(128, 128)}).serve(request, sent)
    flat = [chunk for each in got for chunk in (each if batched else [each])]
    assert (flat[0], flat[2]) == (text, "data: [DONE]\n\n"), "nothing else is touched"
    message = json.loads(flat[1].removeprefix("data: "))
    assert message == {"id": "x", "choices": [], "usage": {"prompt_tokens": 200, "prompt_tokens_details": DETAILS}}
    assert flat[1].endswith("\n\n")


async def test_a_stream_without_usage_is_passed_on_as_it_is() -> None:
    chunk = event({"choices": [], "usage": {"prompt_tokens": 1}})
    assert await Replica().serve(asks(stream=True, stream_options=None), [chunk]) == [chunk]


@pytest.mark.parametrize("batched", [False, True])
async def test_the_first_piece_of_a_stream_tells_what_is_known_to_whoever_asks(batched: bool) -> None:
    replica = Replica({"internal": Lookup(128, 128)})
    sent: list[Any] = [["data: 1\n\n"], ["data: 2\n\n"]] if batched else ["data: 1\n\n", "data: 2\n\n"]
    first, second = await replica.serve(asks(stream=True, stream_options=None), sent, with_first=True)
    assert take_preface(first) == (DETAILS, sent[0])
    assert second == sent[1]


async def test_a_lookup_that_was_told_of_is_still_there_for_the_usage() -> None:
    last = event({"id": "x", "choices": [], "usage": {"prompt_tokens": 200}})
    request = asks(stream=True, stream_options=SimpleNamespace(include_usage=True))
    *_, said = await Replica({"internal": Lookup(128, 128)}).serve(request, ["data: 1\n\n", last], with_first=True)
    assert json.loads(said.removeprefix("data: "))["usage"]["prompt_tokens_details"] == DETAILS


async def test_ids_that_the_tokenizer_does_not_have_are_refused() -> None:
    replica = Replica()
    with pytest.raises(HTTPException, match=r"tokens\[1\]: 100 is no token id: they lie between 0 and 99"):
        await replica.detokenize(SimpleNamespace(tokens=[99, 100]))


async def test_each_request_gets_an_id_of_its_own() -> None:
    one, two = asks(), asks()
    replica = Replica()
    await asyncio.gather(replica.serve(one, [whole()]), replica.serve(two, [whole()]))
    assert len({one.request_id, two.request_id, "the client's"}) == 3


async def test_a_salt_that_would_end_the_engine_does_not_reach_it() -> None:
    request = asks(cache_salt="aGVsbG8/d29ybGQ+@")
    await Replica().serve(request, [whole()])
    IPCCacheServerKey("m", 1, None, (1,), 0, 1, "r", cache_salt=request.cache_salt)


async def test_nothing_is_kept_of_a_request_that_fails() -> None:
    replica = Replica()
    with pytest.raises(ValueError, match="no"):
        await replica.serve(asks(), [ValueError("no")])
    assert len(replica._reporter) == 0


async def test_nothing_is_kept_of_a_client_that_leaves() -> None:
    replica = Replica()

    async def endless() -> AsyncGenerator[Any, None]:
        while True:
            yield "data: x\n\n"

    request = asks()
    stream = replica._answer(request, endless(), None)
    await anext(stream)
    assert len(replica._reporter) == 1
    await stream.aclose()
    assert len(replica._reporter) == 0


async def test_nothing_is_kept_of_an_answer_that_nobody_began_to_read() -> None:
    """A generator that is dropped before its first step never runs its `finally`."""
    replica = Replica()

    async def engine(_: Any, __: Any) -> AsyncGenerator[Any, None]:
        async def run() -> AsyncGenerator[Any, None]:
            yield whole()

        return run()

    request = asks()
    stream = replica._answer(request, await replica._call(engine, request, None), None)
    del stream
    gc.collect()
    await asyncio.sleep(0)
    assert len(replica._reporter) == 0


@pytest.mark.parametrize(("form", "raises"), [({"grammar": "root ::= root"}, FieldError), (None, GenerationError)])
async def test_a_request_that_the_engine_gives_up_is_its_grammar_s_fault_if_it_has_one(
    form: dict[str, str] | None, raises: type[Exception]
) -> None:
    request = SimpleNamespace(stream=False, structured_outputs=form, request_id="")
    with pytest.raises(raises):
        await Replica().serve(request, [GenerationError("Internal server error")])
