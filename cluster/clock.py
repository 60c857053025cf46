"""Time as a thing that is passed in: waits and retries are then ordinary unit tests."""

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds, from any fixed point, never going back."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
