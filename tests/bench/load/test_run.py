"""The runners against a real server over real sockets."""

import asyncio
from typing import Any

import httpx
import pytest

from app.bench.load.endpoint import Endpoint
from app.bench.load.plan import Conversation, PlannedRequest
from app.bench.load.record import RequestRecord
from app.bench.load.run import closed, open_loop
from app.bench.load.send import send
from tests.bench.load.sse import Script, sse_server

USAGE = {"prompt_tokens": 9, "completion_tokens": 3}
OURS = {
    "cached_tokens": 8,
    "l0_tokens": 2,
    "l1_tokens": 4,
    "l2_tokens": 2,
    "computed_tokens": 1,
    "replica": "abc",
}


def talk(name: str, turns: int = 1, pause_s: float = 0.0) -> Conversation:
    requests = tuple(
        PlannedRequest(({"role": "user", "content": f"{name}{turn}"},), 9, 3, "p", name, turn, pause_s)
        for turn in range(turns)
    )
    return Conversation(name, requests)


async def one(script: Script, request: PlannedRequest | None = None) -> RequestRecord:
    loop = asyncio.get_running_loop()
    async with sse_server(lambda body: script) as server, httpx.AsyncClient(timeout=10) as http:
        return await send(http, Endpoint(server.url, "m"), request or talk("a").requests[0], loop.time)


# -- what is recorded of one request ----------------------------------------------------------------------------------


async def test_times_the_first_token_the_gaps_and_the_whole() -> None:
    record = await one(Script(first_after_s=0.2, gap_s=0.05, usage=USAGE))
    assert record.ok
    assert record.ttft_s is not None
    assert record.ttft_s >= 0.2
    assert len(record.itl_s) == 2
    assert sum(record.itl_s) >= 0.1
    assert record.e2e_s >= record.ttft_s + sum(record.itl_s)
    assert (record.text, record.prompt_tokens, record.output_tokens) == ("one two three", 9, 3)


async def test_keeps_tokens_by_tier_and_the_replica() -> None:
    record = await one(Script(usage={**USAGE, "prompt_tokens_details": OURS}))
    assert [record.tokens(tier) for tier in ("l0", "l1", "l2", "computed")] == [2, 4, 2, 1]
    assert (record.cached_tokens, record.replica) == (8, "abc")


async def test_other_servers_tell_cached_tokens_alone() -> None:
    record = await one(Script(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 8}}))
    assert record.cached_tokens == 8
    assert record.l0_tokens is None
    assert record.computed_tokens is None
    assert (await one(Script(usage=USAGE))).cached_tokens is None


async def test_an_answer_whose_token_has_no_text_is_timed_by_its_end() -> None:
    line = b'data: {"choices":[{"delta":{"content":""},"finish_reason":"length"}]}\n\n'
    record = await one(Script(tokens=(), extra_lines=(line,), usage={"prompt_tokens": 9, "completion_tokens": 1}))
    assert record.ok
    assert record.ttft_s is not None
    assert record.itl_s == ()


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (Script(status=503), "status 503"),
        (Script(cut=True), "RemoteProtocolError"),
        (Script(extra_lines=(b'data: {"error": {"message": "out of blocks"}}\n\n',)), "out of blocks"),
        (Script(extra_lines=(b"data: not json\n\n",)), "not json"),
        (Script(tokens=()), "no token"),
    ],
)
async def test_a_failure_is_a_record_that_says_why(script: Script, says: str) -> None:
    record = await one(script)
    assert not record.ok
    assert says in record.error
    assert record.status == script.status


async def test_nobody_listening_is_a_record_too(unused_port: int) -> None:
    async with httpx.AsyncClient() as http:
        clock = asyncio.get_running_loop().time
        record = await send(http, Endpoint(f"http://127.0.0.1:{unused_port}", "m"), talk("a").requests[0], clock)
    assert (record.status, record.ttft_s) == (0, None)
    assert "ConnectError" in record.error


async def test_sends_what_the_plan_says() -> None:
    async with sse_server() as server:
        conversation = talk("a").on("replica-1").in_phase("warm", cache_salt="s")
        await closed(Endpoint(f"{server.url}/v1", "m", "key"), [conversation], 1)
        ((headers, body),) = server.asked
    assert (headers["authorization"], headers["x-tierserve-replica"]) == ("Bearer key", "replica-1")
    assert (body["model"], body["cache_salt"], body["max_tokens"], body["stream"]) == ("m", "s", 3, True)
    assert body["messages"] == [{"role": "user", "content": "a0"}]


# -- loops ------------------------------------------------------------------------------------------------------------


async def test_a_closed_loop_holds_as_many_as_it_should_and_keeps_the_plans_order() -> None:
    seen: list[RequestRecord] = []
    async with sse_server() as server:
        server.barrier = asyncio.Barrier(3)  # nobody is answered before three are there
        records = await closed(Endpoint(server.url, "m"), [talk(f"c{n}") for n in range(6)], 3, seen.append)
        assert server.open_most == 3
    assert [record.conversation for record in records] == [f"c{n}" for n in range(6)]
    assert sorted(record.index for record in seen) == list(range(6))


async def test_turns_of_a_conversation_follow_each_other() -> None:
    async with sse_server() as server:
        first, second, third = await closed(Endpoint(server.url, "m"), [talk("c", 3, pause_s=0.05)], 2)
        assert server.open_most == 1
    assert second.started_s >= first.started_s + first.e2e_s + 0.05
    assert third.started_s >= second.started_s + second.e2e_s + 0.05


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    async with sse_server() as server:
        server.barrier = asyncio.Barrier(4)
        arrivals = [0.0, 0.02, 0.04, 0.06]
        records = await open_loop(Endpoint(server.url, "m"), [talk(f"c{n}") for n in range(4)], arrivals)
        assert server.open_most == 4
    assert [record.scheduled_s for record in records] == arrivals
    assert all(record.late_s >= 0 for record in records)


async def test_a_conversation_ends_with_its_first_failure_and_others_go_on() -> None:
    def answer(body: dict[str, Any]) -> Script:
        return Script(status=500 if body["messages"][-1]["content"] == "a1" else 200)

    async with sse_server(answer) as server:
        records = await closed(Endpoint(server.url, "m"), [talk("a", 3), talk("b", 3)], 2)
    assert [(record.conversation, record.ok) for record in records] == [
        ("a", True),
        ("a", False),
        ("b", True),
        ("b", True),
        ("b", True),
    ]
    assert [record.index for record in records] == [0, 1, 3, 4, 5]
