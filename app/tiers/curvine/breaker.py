"""A circuit breaker: stops asking a file system that does not answer, and finds out when it does again."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    CLOSED = "closed"  # everything is let through
    OPEN = "open"  # nothing is
    HALF_OPEN = "half_open"  # one probe is under way, nothing else


@dataclass(frozen=True, slots=True)
class BreakerStatus:
    """For metrics and status."""

    state: State
    consecutive_failures: int
    opened: int
    probes: int
    last_failure: str


class Breaker:
    """closed --`threshold` failures in a row--> open --probe after `rest_s`--> half open --ok--> closed
                                                  ^------------- not ok ---------+

    Failures are counted by kind of call: where reads hang and stats do not, the lookups between two loads say nothing
    about loads.

    Any thread; never blocks; `clock` is monotonic seconds. Users' calls never serve as probes, so nobody pays a
    deadline for finding out that the mount still hangs; see `Prober`.
    """

    def __init__(self, *, threshold: int = 3, rest_s: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        assert threshold >= 1, threshold
        self._threshold = threshold
        self._rest_s = rest_s
        self._clock = clock
        self._lock = threading.Lock()
        self._state = State.CLOSED
        self._failures: dict[str, int] = {}
        self._opened = 0
        self._probes = 0
        self._probe_at = 0.0
        self._last_failure = ""
        self.tripped = threading.Event()  # set while not closed: what the prober sleeps on

    def allows(self) -> bool:
        """Whether to make the call. Lock-free: a stale answer costs one call."""
        return self._state is State.CLOSED

    def succeeded(self, kind: str) -> None:
        """A call went well. Says nothing once the breaker is open: it may have started long before."""
        if self._failures:
            with self._lock:
                if self._state is State.CLOSED:
                    self._failures.pop(kind, None)

    def failed(self, kind: str, reason: str) -> None:
        """A call failed, was late, or was slow."""
        with self._lock:
            self._last_failure = f"{kind}: {reason}"
            self._failures[kind] = self._failures.get(kind, 0) + 1
            if self._state is State.CLOSED and self._failures[kind] >= self._threshold:
                self._open()
                self._opened += 1

    def try_probe(self) -> bool:
        """Whether a probe is due; if so the breaker is half open and the caller owes `probed`."""
        with self._lock:
            if self._state is not State.OPEN or self._clock() < self._probe_at:
                return False
            self._state = State.HALF_OPEN
            self._probes += 1
            return True

    def probed(self, ok: bool) -> None:
        """The result of the probe that `try_probe` allowed."""
        with self._lock:
            if self._state is not State.HALF_OPEN:
                return
            if ok:
                self._state = State.CLOSED
                self._failures.clear()
                self.tripped.clear()
            else:
                self._open()

    def _open(self) -> None:
        self._state = State.OPEN
        self._probe_at = self._clock() + self._rest_s
        self.tripped.set()

    def status(self) -> BreakerStatus:
        with self._lock:
            return BreakerStatus(
                self._state, max(self._failures.values(), default=0), self._opened, self._probes, self._last_failure
            )

    def check_integrity(self) -> None:
        """Raises AssertionError if the parts of the state contradict each other."""
        with self._lock:
            assert self.tripped.is_set() == (self._state is not State.CLOSED), (self._state, self.tripped.is_set())
            worst = max(self._failures.values(), default=0)
            assert self._state is not State.CLOSED or worst < self._threshold, self._failures
            assert self._opened <= self._probes + 1, (self._opened, self._probes)
