"""What a replica that is being stopped does with its answers."""

import asyncio
import inspect
from collections.abc import AsyncGenerator

import pytest
from ray.serve._private import replica

from app.serving.broken_stream import honest
from app.serving.http_errors import response_to
from app.serving.stopping import StoppedError, Stopping, engine_options, ingress_options, serve_is_stopping


class Pieces:
    """An answer whose pieces come when the test says so."""

    def __init__(self) -> None:
        self.ready: asyncio.Queue[str | None] = asyncio.Queue()
        self.closed = False

    async def __call__(self) -> AsyncGenerator[str, None]:
        try:
            while (piece := await self.ready.get()) is not None:
                yield piece
        finally:
            self.closed = True


class Flag:
    def __init__(self) -> None:
        self.up = False

    def __call__(self) -> bool:
        return self.up


async def until(stopping: Stopping) -> None:
    """It has seen that its replica is being stopped."""
    async with asyncio.timeout(10):
        while stopping._until is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    stopping.check_integrity()


async def test_an_answer_is_passed_on_and_ends_as_it_would() -> None:
    source = Pieces()
    for piece in ("a", "b", None):
        source.ready.put_nowait(piece)
    assert [piece async for piece in Stopping(0.0, Flag()).bounded(source())] == ["a", "b"]


async def test_an_answer_that_waits_when_its_time_is_over_ends_and_is_closed() -> None:
    flag, source = Flag(), Pieces()
    stopping = Stopping(0.0, flag)
    answer = stopping.bounded(source())
    waiting = asyncio.create_task(anext(answer))
    await asyncio.sleep(0)
    flag.up = True
    with pytest.raises(StoppedError):
        await waiting
    assert source.closed


async def test_an_answer_between_two_pieces_ends_at_its_next_step() -> None:
    flag, source = Flag(), Pieces()
    stopping = Stopping(0.0, flag)
    source.ready.put_nowait("a")
    answer = stopping.bounded(source())
    assert await anext(answer) == "a"
    flag.up = True
    await until(stopping)
    with pytest.raises(StoppedError):
        await anext(answer)


async def test_what_ends_in_the_grace_is_whole() -> None:
    flag, source = Flag(), Pieces()
    stopping = Stopping(3600.0, flag)
    answer = stopping.bounded(source())
    waiting = asyncio.create_task(anext(answer))
    flag.up = True
    await until(stopping)
    source.ready.put_nowait("a")
    assert await waiting == "a"
    source.ready.put_nowait(None)
    assert [piece async for piece in answer] == []


async def test_a_client_that_leaves_closes_its_answer() -> None:
    source = Pieces()
    source.ready.put_nowait("a")
    answer = Stopping(0.0, Flag()).bounded(source())
    await anext(answer)
    await answer.aclose()
    assert source.closed


async def test_a_timeout_of_the_answers_own_is_not_taken_for_the_end() -> None:
    async def slow() -> AsyncGenerator[str, None]:
        raise TimeoutError("the engine's")
        yield ""

    with pytest.raises(TimeoutError, match="the engine's"):
        await anext(Stopping(0.0, Flag()).bounded(slow()))


async def test_clients_are_told() -> None:
    """In a stream by its last event, before one by a 503."""
    flag, source = Flag(), Pieces()
    source.ready.put_nowait("data: 1\n\n")
    flag.up = True
    stream = honest(Stopping(0.0, flag).bounded(source()))
    [*_, last] = [piece async for piece in stream]
    assert last.startswith('data: {"error": {"message": "The server was stopped in the middle of this answer.')
    refused = response_to(StoppedError())
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


def test_serve_waits_until_all_are_told() -> None:
    for options in (ingress_options(30.0), engine_options(30.0)):
        assert options["graceful_shutdown_timeout_s"] > 30.0 + options["graceful_shutdown_wait_loop_s"]


def test_serve_marks_a_replica_that_it_stops() -> None:
    """Private names of ray 2.60.0: without them replicas are killed in the middle of their answers, as in Ray."""
    assert "self._shutting_down = True" in inspect.getsource(replica.Replica._perform_graceful_shutdown)
    assert "self._replica_impl" in inspect.getsource(replica.ReplicaActor.perform_graceful_shutdown)
    assert serve_is_stopping() is False
