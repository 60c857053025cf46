"""Who may still touch the caller's memory.

A thread that is stuck in the kernel cannot be called back. When its deadline has passed, the caller gets its buffer
back and uses it for something else, and the mount may recover an hour later: a read that then completes would write
old bytes into somebody else's KV, and a store would publish them. Every access to the caller's memory therefore goes
through a `Landing`:

    open --revoke()--> revoked        never back

A worker writes into the buffer only while it holds `lock` and has seen `revoked` False there, and holds it for one
step that cannot block on the file system. `revoke` takes the same lock: once it has returned, nobody writes.
"""

import threading


class AbandonedError(Exception):
    """Raised inside a worker whose caller has gone; never seen by a caller."""


class Landing:
    """The right to use one caller's buffer. Made by the guard for each piece of work; any thread may revoke."""

    __slots__ = ("lock", "revoked")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.revoked = False

    def revoke(self) -> None:
        """Ends the right. Blocks at most for one step of a worker: a copy out of the page cache of at most 64 MiB."""
        with self.lock:
            self.revoked = True

    def check(self) -> None:
        """Called by the worker before it reads the caller's memory, and after the last read before it publishes.

        Raises:
            AbandonedError: the caller has gone.
        """
        if self.revoked:
            raise AbandonedError
