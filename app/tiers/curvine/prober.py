"""Finds out whether a file system that failed is back."""

import logging
import threading
from collections.abc import Callable

from app.tiers.curvine.breaker import Breaker
from app.tiers.curvine.guard import Guard
from app.tiers.curvine.landing import Landing

logger = logging.getLogger(__name__)


class Prober:
    """Asks an open breaker's file system, in the background, whether it is back.

    `probe` blocks and raises OSError; it runs under `guard` with `deadline_s`, so a mount that still hangs costs one
    worker of the bounded number a time, and nothing once they are used up.
    """

    def __init__(self, breaker: Breaker, guard: Guard, probe: Callable[[], None], deadline_s: float = 1.0) -> None:
        self._breaker = breaker
        self._guard = guard
        self._probe = probe
        self._deadline_s = deadline_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="curvine-prober", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._breaker.tripped.wait()
            if self._stop.is_set():
                return
            if self._breaker.try_probe():
                self._breaker.probed(self._guard.call(self._ask, self._deadline_s, probing=True) is True)
            else:
                self._stop.wait(0.05)

    def _ask(self, _: Landing) -> bool:
        try:
            self._probe()
        except OSError as error:
            logger.info("the pool's file system is still failing: %s", error)
            return False
        return True

    def close(self) -> None:
        """Stops probing; waits for a probe under way, whose deadline bounds it."""
        self._stop.set()
        self._breaker.tripped.set()
        self._thread.join(self._deadline_s + 0.5)
