"""The routing cores of this process, by deployment: where the router and the ingress of one process meet.

Ray Serve pickles a router's own module by value, so its globals are copies; this module is imported by name, so
there is one of it per process. Processes share nothing here: see docs/routing.md for what that means with several
ingress replicas.
"""

import threading

from app.routing.core import RoutingCore

_lock = threading.Lock()
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


def close_core(app: str, deployment: str) -> None:
    """Forget a deployment's core: the next `open_core` starts empty, like a restarted process."""
    with _lock:
        _cores.pop((app, deployment), None)
