"""A replica that Serve stops ends its answers itself, in time to say so to their clients.

Serve waits for the answers under way as long as `graceful_shutdown_timeout_s` and then kills the replica: streams just
end, and an engine that is killed leaves semaphores. It tells the replica's own code nothing before that; that it has
begun to stop is read from a private attribute of ray 2.60.0 (tests/serving/test_stopping.py).

    running --Serve begins to stop the replica--> grace (answers go on) --grace_s--> over (each ends with an error)
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TypeVar

from ray._private import worker

T = TypeVar("T")

_LOOK_EVERY_S = 0.2
# What ending takes after the grace: until a client has read its error; until an engine's process is gone.
_TELL_S, _TEAR_DOWN_S = 5.0, 15.0
# Serve looks this often whether all is answered (2 s if left alone, which each tier of an application waits at least).
_LOOP_S = 1.0


class StoppedError(Exception):
    """The replica is being stopped, and the time that its answers had is over."""


def ingress_options(grace_s: float) -> dict[str, float]:
    """Serve's options for a deployment whose answers have `grace_s`."""
    return {"graceful_shutdown_timeout_s": grace_s + _TELL_S, "graceful_shutdown_wait_loop_s": _LOOP_S}


def engine_options(grace_s: float) -> dict[str, float]:
    """The same for one that has an engine to end as well."""
    return {"graceful_shutdown_timeout_s": grace_s + _TEAR_DOWN_S, "graceful_shutdown_wait_loop_s": _LOOP_S}


def serve_is_stopping() -> bool:
    """Whether Serve has begun to stop the replica of this process; False where there is none."""
    this = worker.global_worker
    actor = this.actors.get(this.actor_id)
    return bool(getattr(getattr(actor, "_replica_impl", None), "_shutting_down", False))


class Stopping:
    """Of one replica, on its event loop."""

    def __init__(self, grace_s: float, is_stopping: Callable[[], bool] = serve_is_stopping) -> None:
        self._grace_s, self._is_stopping = grace_s, is_stopping
        self._until: float | None = None
        self._waiting: set[asyncio.Timeout] = set()
        self._watching: asyncio.Task[None] | None = None

    async def bounded(self, pieces: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """`pieces`, of an answer. Raises StoppedError when its time is over; `pieces` are closed then."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        async with aclosing(pieces):
            while True:
                try:
                    piece = await self._next(pieces)
                except StopAsyncIteration:
                    return
                yield piece

    async def _next(self, pieces: AsyncIterator[T]) -> T:
        try:
            async with asyncio.timeout_at(self._until) as limit:
                self._waiting.add(limit)
                try:
                    return await anext(pieces)
                finally:
                    self._waiting.discard(limit)
        except TimeoutError:
            if limit.expired():
                raise StoppedError from None
            raise

    async def _watch(self) -> None:
        while not self._is_stopping():  # noqa: ASYNC110 - a flag of Serve's, in another thread
            await asyncio.sleep(_LOOK_EVERY_S)
        self._until = asyncio.get_running_loop().time() + self._grace_s
        for limit in self._waiting:
            limit.reschedule(self._until)

    def check_integrity(self) -> None:
        assert all(limit.when() == self._until for limit in self._waiting), (self._until, self._waiting)
