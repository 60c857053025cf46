"""What engines report of themselves, for the policies that read it. Read at the moment of choice: no scrape is that
fresh, so this favours them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Gauge:
    waiting: int
    """Requests that have not begun: vLLM's num_requests_waiting."""
    usage: float
    """Share of KV blocks in use."""


@runtime_checkable
class Watching(Protocol):
    def watch(self, gauge: Callable[[str], Gauge]) -> None:
        """`gauge(replica)` may be called for every live replica whenever a request is ranked."""
