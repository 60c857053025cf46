"""Each key's work runs once at a time, and nobody waits for another key's."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from app.serving.single_flight import SingleFlight


class Works:
    """Work that ends when the test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()

    def of(self, key: str) -> Callable[[], Coroutine[Any, Any, None]]:
        async def work() -> None:
            self.begun.append(key)
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            self.ended.append(key)

        return work


def asking(flights: SingleFlight, works: Works, *keys: str) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(flights.run(key, works.of(key))) for key in keys]


async def steps() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_callers_of_one_key_share_one_run() -> None:
    flights, works = SingleFlight(), Works()
    callers = asking(flights, works, "a", "a", "b", "a")
    await steps()
    assert works.begun == ["a", "b"]
    assert len(flights) == 2
    works.gate.set()
    await asyncio.gather(*callers)
    assert works.ended == ["a", "b"]
    assert len(flights) == 0


async def test_a_key_that_has_ended_runs_anew() -> None:
    flights, works = SingleFlight(), Works()
    works.gate.set()
    for _ in range(2):
        await flights.run("a", works.of("a"))
    assert works.ended == ["a", "a"]


async def test_all_callers_are_told_of_its_failure_and_the_next_one_tries_again() -> None:
    flights, works = SingleFlight(), Works()
    works.error = ValueError("no")
    callers = asking(flights, works, "a", "a")
    works.gate.set()
    assert [str(outcome) for outcome in await asyncio.gather(*callers, return_exceptions=True)] == ["no", "no"]
    works.error = None
    await flights.run("a", works.of("a"))
    assert works.ended == ["a"]


async def test_the_caller_that_began_it_may_leave() -> None:
    flights, works = SingleFlight(), Works()
    first, second = asking(flights, works, "a", "a")
    await steps()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    works.gate.set()
    await second
    assert (works.begun, works.ended) == (["a"], ["a"])


async def test_a_failure_that_nobody_waits_for_is_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    flights, works = SingleFlight(), Works()
    works.error = ValueError("no")
    [caller] = asking(flights, works, "a")
    await steps()
    caller.cancel()
    works.gate.set()
    await steps()
    assert len(flights) == 0
    assert not caplog.records
