"""A request whose replica was lost before it answered anything is sent again: the client need not know.

Refused unread by a replica whose engine is gone: as often as it takes until that replica has left, which is a second or
two. Lost while the engine worked on it: once, because it may be what the engine died of; not at all if it asks for what
has ended engines before.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from app.serving.broken_stream import ENGINE_DIED, error_in
from app.serving.http_errors import UNAVAILABLE

_PAUSE_S = 0.5
_GIVE_UP_S = 15.0
_NOT_BEGUN = "ReplicaLostError"
# Unlike the others this one does not pass: Serve has given the deployment up.
_LASTING = "DeploymentUnavailableError"


class EngineDiedError(Exception):
    """A stream that began with nothing but the news of its engine's death."""


async def with_second_try(
    ask: Callable[[], AsyncGenerator[Any, None]], clock: Callable[[], float] = time.monotonic, *, suspect: bool = False
) -> AsyncGenerator[Any, None]:
    """What `ask()` answers; asked anew while nothing of an answer has come and the replica is what was lost. One that
    is `suspect` has no second try after an engine has begun it."""
    until, left = clock() + _GIVE_UP_S, 0 if suspect else 1
    while True:
        began = False
        try:
            async for response in ask():
                if not began and ENGINE_DIED in (error_in(response) or ""):
                    raise EngineDiedError
                began = True
                yield response
            return
        except Exception as error:
            names = {cls.__name__ for cls in type(error).__mro__}
            if began or _LASTING in names or not names & UNAVAILABLE:
                raise
            left -= _NOT_BEGUN not in names
            if left < 0 or clock() > until:
                raise
        await asyncio.sleep(_PAUSE_S)
