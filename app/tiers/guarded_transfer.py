"""Keeps a dead cache server from stopping or killing a CPU engine.

On CPU the engine's own thread copies chunks and waits for the server's answers. In lmcache 0.5.6 an answer that does
not come raises out of the store (`PREPARE_STORE timed out`), which ends the engine, and every chunk group waits anew.
With the guard the first missing answer marks the server unhealthy (as the heartbeat would do later): the calls
after it fail at once, their chunks are computed or not stored, and the heartbeat registers again when it is back.

Pure: works on anything with the four methods of LMCache's EngineDrivenContext.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

# Method -> what it returns when the server has nothing to give.
_FAILURE: dict[str, Any] = {
    "prepare_store": None,
    "commit_store": False,
    "prepare_retrieve": None,
    "commit_retrieve": False,
}


def guard(
    context: Any, healthy: threading.Event, timeout_s: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Wrap the methods of `context` (mutated) so that none raises and none waits for a server that is known to be gone.

    `healthy` is the event that LMCache's heartbeat sets and clears; it is cleared here when a call raises or takes
    `timeout_s`, which becomes the context's own time-out for each answer.
    """
    context.mq_timeout = timeout_s
    for name, failure in _FAILURE.items():
        setattr(context, name, _guarded(name, getattr(context, name), failure, healthy, timeout_s, clock))


def _guarded(
    name: str,
    method: Callable[..., Any],
    failure: Any,
    healthy: threading.Event,
    timeout_s: float,
    clock: Callable[[], float],
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not healthy.is_set():
            return failure
        started = clock()
        try:
            result = method(*args, **kwargs)
        except Exception as error:
            healthy.clear()
            logger.warning("cache server: %s failed (%s); going on without L1 until it is back", name, error)
            return failure
        if clock() - started >= timeout_s:
            healthy.clear()
            logger.warning("cache server: no answer to %s in %.1f s; going on without L1", name, timeout_s)
        return result

    return call
