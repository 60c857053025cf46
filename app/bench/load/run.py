"""Sends a plan to an endpoint: so many at a time (closed loop), or as they arrive (open loop)."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

from app.bench.load.arrivals import poisson
from app.bench.load.endpoint import Endpoint
from app.bench.load.plan import Conversation
from app.bench.load.record import RequestRecord
from app.bench.load.send import Clock, send

OnRecord = Callable[[RequestRecord], None]
_TIMEOUT_S = 600.0


def run_closed(
    endpoint: Endpoint, plan: Sequence[Conversation], concurrency: int = 1, on_record: OnRecord | None = None
) -> list[RequestRecord]:
    """`concurrency` conversations are held at any time; one that ends makes room for the next, in the plan's order.

    Returns the records by the plan's order.
    """
    return asyncio.run(closed(endpoint, plan, concurrency, on_record))


def run_open(
    endpoint: Endpoint, plan: Sequence[Conversation], rate: float, seed: int, on_record: OnRecord | None = None
) -> list[RequestRecord]:
    """Conversations begin as a Poisson process of `rate` a second, whether or not earlier ones have ended."""
    return asyncio.run(open_loop(endpoint, plan, poisson(rate, len(plan), seed), on_record))


async def closed(
    endpoint: Endpoint, plan: Sequence[Conversation], concurrency: int, on_record: OnRecord | None = None
) -> list[RequestRecord]:
    async with connections() as http:
        run = _Run(endpoint, http, on_record)
        waiting = iter(_numbered(plan))

        async def worker() -> None:
            for first, conversation in waiting:
                await run.hold(first, conversation, None)

        await asyncio.gather(*(worker() for _ in range(concurrency)))
    return run.in_order()


async def open_loop(
    endpoint: Endpoint, plan: Sequence[Conversation], arrivals: Sequence[float], on_record: OnRecord | None = None
) -> list[RequestRecord]:
    """One arrival a conversation, in seconds from the start."""
    async with connections() as http:
        run = _Run(endpoint, http, on_record)
        numbered = zip(_numbered(plan), arrivals, strict=True)
        await asyncio.gather(*(run.hold(first, each, at) for (first, each), at in numbered))
    return run.in_order()


@dataclass
class _Run:
    endpoint: Endpoint
    http: httpx.AsyncClient
    on_record: OnRecord | None
    records: list[RequestRecord] = field(default_factory=list)
    clock: Clock = field(default_factory=lambda: since_now())

    async def hold(self, first: int, conversation: Conversation, at: float | None) -> None:
        """Send a conversation's requests, one after the other's answer; after a failure there is no next turn."""
        due = self.clock() if at is None else at
        for turn, request in enumerate(conversation.requests):
            due += request.pause_s
            await asyncio.sleep(max(0.0, due - self.clock()))
            record = await send(self.http, self.endpoint, request, self.clock, index=first + turn, scheduled_s=due)
            self.records.append(record)
            if self.on_record is not None:
                self.on_record(record)
            if not record.ok:
                return
            due = self.clock()

    def in_order(self) -> list[RequestRecord]:
        return sorted(self.records, key=lambda record: record.index)


def _numbered(plan: Sequence[Conversation]) -> list[tuple[int, Conversation]]:
    """Each conversation with the index of its first request."""
    numbered, first = [], 0
    for conversation in plan:
        numbered.append((first, conversation))
        first += len(conversation.requests)
    return numbered


def connections() -> httpx.AsyncClient:
    """As many connections as there are requests: a queue in the client would be measured as the server's."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(timeout=httpx.Timeout(_TIMEOUT_S), limits=limits)


def since_now() -> Clock:
    began = time.perf_counter()
    return lambda: time.perf_counter() - began
