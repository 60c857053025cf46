"""How many bytes this writer may still store: what keeps a pool with many writers below its limit.

A limit that each writer checks by looking at the disk is overrun by all of them together. Here the janitor hands out
credit from the room that is left, and everything handed out counts as used until the writer has reported what it did
with it:

    used + credit that is out  <=  capacity          at all times, whoever writes and however fast
"""

import threading


class Credit:
    """Any thread; never blocks. Unlimited until somebody sets a limit."""

    def __init__(self, *, limited: bool = False) -> None:
        self._lock = threading.Lock()
        self._granted = 0 if limited else None
        self._taken = 0
        self._refused = 0
        self._largest = 0

    def admit(self, file_bytes: int) -> bool:
        """Takes credit for a file that is about to be written; False if there is not enough."""
        with self._lock:
            self._largest = max(self._largest, file_bytes)
            if self._granted is None:
                self._taken += file_bytes
                return True
            if self._taken + file_bytes > self._granted:
                self._refused += 1
                return False
            self._taken += file_bytes
            return True

    def refund(self, file_bytes: int) -> None:
        """Gives back what was taken for a file that was not published after all."""
        with self._lock:
            self._taken -= file_bytes
            assert self._taken >= 0, self._taken

    def grant(self, total: int | None) -> None:
        """Sets what may be taken in all, ever; None for no limit. The janitor only raises it."""
        with self._lock:
            self._granted = total

    @property
    def taken(self) -> int:
        with self._lock:
            return self._taken

    @property
    def largest(self) -> int:
        """The largest file that anybody wanted to write: less credit than that is none."""
        with self._lock:
            return self._largest

    @property
    def refused(self) -> int:
        """Stores that were dropped for want of credit."""
        with self._lock:
            return self._refused
