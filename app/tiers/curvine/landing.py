"""Who may still touch the caller's memory.

A thread that is stuck in the kernel cannot be called back. When its deadline has passed, the caller gets its buffer
back and uses it for something else, and the mount may recover an hour later: a read that then completes would write
old bytes into somebody else's KV, and a store would publish them. Every access to the caller's memory therefore goes
through a `Landing`:

    open --revoke()--> revoked        never back

A worker writes into the buffer only while it holds `lock` and has seen `revoked` False there, and holds it for one
step that cannot block on the file system. `revoke` takes the same lock: once it has returned, nobody writes. Compiled
code does the same with the `Gate`, because it cannot take a lock of the interpreter's.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Final

_libc = ctypes.CDLL(None)


class AbandonedError(Exception):
    """Raised inside a worker whose caller has gone; never seen by a caller."""


class Gate:
    """A POSIX mutex and, `SHUT` numbers of 64 bits behind it, a number that is not zero once the gate is shut. Compiled
    code holds the mutex while it writes, and first looks at the number."""

    SHUT: Final = 8  # a mutex takes 40 to 48 bytes; all zeros is one that is free

    def __init__(self) -> None:
        self._memory = (ctypes.c_int64 * (self.SHUT + 1))()
        self.address = ctypes.addressof(self._memory)

    def shut(self) -> None:
        """Blocks for at most one step of whoever is writing."""
        mutex = ctypes.c_void_p(self.address)
        _libc.pthread_mutex_lock(mutex)
        self._memory[self.SHUT] = 1
        _libc.pthread_mutex_unlock(mutex)


class Landing:
    """The right to use one caller's buffer. Made by the guard for each piece of work; any thread may revoke."""

    __slots__ = ("_clock", "_gate", "_since", "lock", "longest_s", "revoked")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.lock = threading.Lock()
        self.revoked = False
        self.longest_s = 0.0
        """The longest step: what tells a slow file system from a long piece of work."""
        self._gate: Gate | None = None
        self._clock = clock
        self._since = clock()

    def step(self) -> None:
        """Called by the worker when it is done with a file, and by the guard when it is done with a piece of work."""
        now = self._clock()
        self.longest_s = max(self.longest_s, now - self._since)
        self._since = now

    def took(self, seconds: float) -> None:
        """`step` for one of known length, the longest of several."""
        self.longest_s = max(self.longest_s, seconds)
        self._since = self._clock()

    def gate(self) -> Gate:
        """For compiled code; shut by `revoke`.

        Raises:
            AbandonedError: the caller has gone.
        """
        with self.lock:
            self.check()
            if self._gate is None:
                self._gate = Gate()
            return self._gate

    def revoke(self) -> None:
        """Ends the right. Blocks at most for one step of a worker: a copy of at most 1 MiB out of the page cache."""
        with self.lock:
            self.revoked = True
        if self._gate is not None:  # nobody makes one any more
            self._gate.shut()

    def check(self) -> None:
        """Called by the worker before it reads the caller's memory, and after the last read before it publishes.

        Raises:
            AbandonedError: the caller has gone.
        """
        if self.revoked:
            raise AbandonedError
