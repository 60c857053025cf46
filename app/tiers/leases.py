"""Who still uses a node's cache. Pure; the clock is injected.

never held --renew--> held --release or expiry of the last--> idle --lease_s--> over
                        ^------------------renew---------------'
"""

import time
from collections.abc import Callable


class Leases:
    """Leases by holder. Not thread safe: one event loop uses it."""

    def __init__(self, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s, self._clock = lease_s, clock
        self._renewed: dict[str, float] = {}
        self._last_held: float | None = None

    def renew(self, holder: str) -> None:
        self._renewed[holder] = self._last_held = self._clock()

    def release(self, holder: str) -> None:
        if self._renewed.pop(holder, None) is not None:
            self._last_held = self._clock()

    def holders(self) -> list[str]:
        """Those whose lease has not run out, sorted."""
        now = self._clock()
        for holder, renewed in list(self._renewed.items()):
            if now - renewed >= self._lease_s:
                del self._renewed[holder]
                self._last_held = max(self._last_held or 0.0, renewed + self._lease_s)
        return sorted(self._renewed)

    def over(self) -> bool:
        """Nobody has held a lease for `lease_s`, after somebody did: time enough for the successor of a replica."""
        if self.holders() or self._last_held is None:
            return False
        return self._clock() - self._last_held > self._lease_s

    def check_integrity(self) -> None:
        assert self._last_held is not None or not self._renewed, self._renewed
        assert all(renewed <= (self._last_held or 0.0) for renewed in self._renewed.values()), self._renewed
