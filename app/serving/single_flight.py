"""Work that several callers may ask for at once and that must be done once. Pure; one event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any


class SingleFlight:
    """One run for each key at a time; who asks meanwhile shares that one and its outcome.

    absent --run--> under way --ends, either way--> absent
    """

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def run(self, key: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Raises what the run raised. A caller that is cancelled leaves it running: others may wait for it."""
        task = self._under_way.get(key)
        if task is None:
            # In the first caller's context: its request is the one that the work finds.
            task = asyncio.get_running_loop().create_task(work())
            self._under_way[key] = task
            task.add_done_callback(partial(self._ended, key))
        await asyncio.shield(task)

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            task.exception()  # looked at, even if every caller has left

    def __len__(self) -> int:
        return len(self._under_way)
