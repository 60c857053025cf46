"""A replica ends with its engine, after those who wait were told, and not when its end was asked for."""

import asyncio
from types import SimpleNamespace

import pytest

from app.serving import engine_end
from app.serving.engine_end import EngineEnd, ReplicaLostError


class Replica:
    def __init__(self) -> None:
        self.client = SimpleNamespace(errored=False)
        self.under_way: list[str] = []
        self.closed: list[int] = []  # what was under way when it was closed
        self.left = asyncio.Event()
        self.code: int | None = None

    async def close(self) -> None:
        self.closed.append(len(self.under_way))

    def leave(self, code: int) -> None:
        self.code = code
        self.left.set()

    def watched(self) -> EngineEnd:
        return EngineEnd(self.client, self.under_way, self.close, self.leave)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_end, "_LOOK_EVERY_S", 0.001)


async def test_it_gives_back_what_it_holds_and_leaves() -> None:
    replica = Replica()
    end = replica.watched()
    end.check()
    replica.client.errored = True
    with pytest.raises(ReplicaLostError):
        end.check()
    await asyncio.wait_for(replica.left.wait(), 10)
    assert (replica.code, replica.closed) == (1, [0])


async def test_requests_under_way_are_told_first() -> None:
    replica = Replica()
    replica.under_way.append("request")
    end = replica.watched()
    replica.client.errored = True
    asyncio.get_running_loop().call_later(0.05, replica.under_way.clear)
    await asyncio.wait_for(replica.left.wait(), 10)
    assert replica.closed == [0]
    assert end


async def test_one_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_end, "_RELIEF_S", 0.01)
    replica = Replica()
    replica.under_way.append("request")
    end = replica.watched()
    replica.client.errored = True
    await asyncio.wait_for(replica.left.wait(), 10)
    assert replica.closed == [1]
    assert end


async def test_it_leaves_even_if_nothing_can_be_given_back(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Replica):
        async def close(self) -> None:
            raise RuntimeError("the cache is gone too")

    replica = Stuck()
    end = replica.watched()
    replica.client.errored = True
    await asyncio.wait_for(replica.left.wait(), 10)
    assert "giving back" in caplog.text
    assert end


async def test_an_end_that_was_asked_for_is_no_news() -> None:
    replica = Replica()
    end = replica.watched()
    end.expected()
    replica.client.errored = True
    await asyncio.wait_for(end._watching, 10)
    assert replica.code is None
    assert not replica.closed
