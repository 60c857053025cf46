"""Whoever leaves an answer has its call cancelled; whoever reads it to its end, or to its error, has not."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.serving.cancelling_handle import CancellingHandle


class Responses:
    """As Serve's DeploymentResponseGenerator is used."""

    def __init__(self, pieces: list[Any]) -> None:
        self._pieces, self.cancelled = pieces, False

    async def __aiter__(self) -> AsyncIterator[Any]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            if piece is asyncio.Event:
                await asyncio.Event().wait()
            yield piece

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    def __init__(self, responses: Responses) -> None:
        self.options_given: dict[str, Any] = {}
        self.asked: tuple[Any, ...] = ()
        self._responses = responses
        self.chat = SimpleNamespace(remote=self._remote)

    def options(self, **options: Any) -> "Handle":
        self.options_given = options
        return self

    def _remote(self, *asked: Any) -> Responses:
        self.asked = asked
        return self._responses


async def test_it_is_the_handle_for_whoever_reads_to_the_end() -> None:
    responses = Responses([1, 2])
    handle = Handle(responses)
    read = CancellingHandle(handle).options(session_id="s").chat.remote("body", "info")
    assert handle.asked == ("body", "info"), "sent at once, as by the handle itself"
    assert [piece async for piece in read] == [1, 2]
    assert handle.options_given == {"session_id": "s"}
    assert not responses.cancelled


async def test_an_error_is_nobody_leaving() -> None:
    responses = Responses([1, ValueError("no")])
    with pytest.raises(ValueError, match="no"):
        [piece async for piece in CancellingHandle(Handle(responses)).chat.remote()]
    assert not responses.cancelled


async def test_a_reader_that_stops_cancels() -> None:
    responses = Responses([1, 2])
    read = CancellingHandle(Handle(responses)).chat.remote()
    assert await anext(read) == 1
    await read.aclose()
    assert responses.cancelled


async def test_a_reader_that_is_cancelled_while_it_waits_cancels() -> None:
    responses = Responses([asyncio.Event])
    task = asyncio.ensure_future(anext(CancellingHandle(Handle(responses)).chat.remote()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert responses.cancelled
