"""HTTP to a server of this machine: no proxy between, no certificates to check.

Reading the authorities' certificates takes 42 ms of a core for each client (Intel Xeon). For a question asked twice a
second that was 9 % of a core, on every node, all the time.
"""

from typing import Final, TypedDict


class _Options(TypedDict):
    verify: bool
    trust_env: bool


LOOPBACK: Final[_Options] = {"verify": False, "trust_env": False}
"""For httpx's clients."""
