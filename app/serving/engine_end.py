"""When an engine's process dies, its replica ends too: Serve sees a dead process at once, an unhealthy one after three
health checks (up to 27 s, seen), and sends to it meanwhile.

    watching --engine died--> over (requests refused, those under way told) --RELIEF_S--> process exits
        └──expected()──> the replica is being stopped: the engine's end is no news
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sized
from contextlib import suppress
from typing import Any

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
# Time for the requests under way to be told, and for what was shared (lease, segments, semaphores) to be given back.
_RELIEF_S = 1.0
_CLOSE_S = 5.0


class ReplicaLostError(Exception):
    """The engine of a replica is gone, and this request was not begun there: another replica can take it."""


class EngineEnd:
    """Made on the replica's event loop, once its engine runs. `close` gives back what the replica holds."""

    def __init__(
        self,
        engine_client: Any,
        under_way: Sized,
        close: Callable[[], Awaitable[Any]],
        leave: Callable[[int], Any] = os._exit,
    ) -> None:
        self._client, self._under_way, self._close, self._leave = engine_client, under_way, close, leave
        self._expected = False
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def expected(self) -> None:
        """From now on the engine may end."""
        self._expected = True

    def check(self) -> None:
        """Raises ReplicaLostError if the engine is gone: before anything of a request is done."""
        if self._client.errored:
            raise ReplicaLostError

    async def _watch(self) -> None:
        while not self._client.errored:  # noqa: ASYNC110 - set by a thread of vLLM's
            await asyncio.sleep(_LOOK_EVERY_S)
        if self._expected:
            return
        logger.error("the engine's process is gone: this replica ends, so that Serve replaces it")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._all_told(), _RELIEF_S)
        try:
            await asyncio.wait_for(self._close(), _CLOSE_S)
        except Exception:
            logger.exception("giving back what the replica held failed")
        self._leave(1)

    async def _all_told(self) -> None:
        while len(self._under_way):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(_LOOK_EVERY_S)
