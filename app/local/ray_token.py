"""Ray's token authentication, handled for the user.

Since Ray 2.60 a cluster that is started on a machine generates a token (~/.ray/auth_token) and demands it, but whoever
connects must ask for token mode by himself, or is turned away with 401. We ask for it wherever a token is to be found.
"""

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def use_ray_token(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Turn token mode on for this process and its children, unless it was set or there is no token. True if on."""
    if _MODE not in environment and _has_token(environment):
        environment[_MODE] = "token"
        if "ray" in sys.modules and environment is os.environ:
            # Ray has read its configuration when it was imported: have it read again (private name of ray 2.60.0).
            from ray._raylet import Config  # type: ignore[attr-defined]

            Config.initialize("")
    return environment.get(_MODE) == "token"


def _has_token(environment: MutableMapping[str, str]) -> bool:
    path = Path(environment.get(_TOKEN_PATH) or "~/.ray/auth_token").expanduser()
    return bool(environment.get(_TOKEN)) or path.is_file()
