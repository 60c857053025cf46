"""The routing cores of this process, by deployment: where the router and the ingress of one process meet.

Ray Serve pickles a router's own module by value, so its globals are copies; this module is imported by name, so
there is one of it per process. Processes share nothing here: see docs/routing.md for what that means with several
ingress replicas.
"""

import asyncio
import logging
import threading
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from app.routing.core import RoutingCore

logger = logging.getLogger("tierserve.routing")

Tokenizer = Callable[[object], Sequence[int] | None]
"""The model's own template and tokenizer: a request -> its token ids, None if it has none. May raise; called in a
thread.
"""

TOKENIZE_S = 1.0
"""A request whose tokens take longer is ranked without them."""

_lock = threading.Lock()
_tokenizers: dict[tuple[str, str], Tokenizer] = {}
# Two threads: the Rust tokenizers let go of the GIL, and a long prompt must not hold up a short one.
_threads = ThreadPoolExecutor(2, thread_name_prefix="tokenize")
_cores: dict[tuple[str, str], tuple[object, RoutingCore]] = {}


def open_core(
    app: str, deployment: str, strategy: str, options: dict[str, object], *, log_decisions: bool = False
) -> RoutingCore:
    """The deployment's core, made on first use and made anew if its configuration changed.

    Raises SettingsError for an unknown strategy or option.
    """
    config = (strategy, options, log_decisions)
    with _lock:
        known = _cores.get((app, deployment))
        if known is not None and known[0] == config:
            return known[1]
        core = RoutingCore(strategy, options, log_decisions=log_decisions)
        _cores[(app, deployment)] = (config, core)
        return core


def find_core(app: str, deployment: str) -> RoutingCore | None:
    """The core of a deployment that this process routes to; None before its first request."""
    with _lock:
        known = _cores.get((app, deployment))
        return None if known is None else known[1]


def cores() -> dict[tuple[str, str], RoutingCore]:
    """All of this process, by application and deployment."""
    with _lock:
        return {place: core for place, (_, core) in _cores.items()}


def close_core(app: str, deployment: str) -> None:
    """Forget a deployment's core: the next `open_core` starts empty, like a restarted process."""
    with _lock:
        _cores.pop((app, deployment), None)


def set_tokenizer(app: str, deployment: str, tokenizer: Tokenizer | None) -> None:
    """Give kv_aware the means to see prompts as the engine does. Without it, it behaves like prefix_aware and says
    so.
    """
    with _lock:
        if tokenizer is None:
            _tokenizers.pop((app, deployment), None)
        else:
            _tokenizers[(app, deployment)] = tokenizer


def _packed(tokenizer: Tokenizer, body: object) -> Sequence[int] | None:
    """As an array, made here in the thread: for 128,000 tokens that saves the event loop 0.7 ms."""
    tokens = tokenizer(body)
    return None if tokens is None else array("I", tokens)


async def tokenize(app: str, deployment: str, body: object) -> Sequence[int] | None:
    """Token ids of a request, made off the event loop. None if nobody can, it fails, or it takes too long. Never
    raises.
    """
    tokenizer = _tokenizers.get((app, deployment))
    if tokenizer is None:
        return None
    try:
        work = asyncio.get_running_loop().run_in_executor(_threads, _packed, tokenizer, body)
        return await asyncio.wait_for(work, TOKENIZE_S)
    except Exception as error:
        logger.warning("a request could not be tokenised for routing: %s", type(error).__name__)
        return None
