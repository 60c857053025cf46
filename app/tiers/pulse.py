"""What a node's cache says of its server whenever it is asked, at no cost to the server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pulse:
    """`up`: the server has started and nothing has been seen to be wrong with it since."""

    key: str
    up: bool
