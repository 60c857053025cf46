"""A command that has started processes ends them when it is told to end, in whichever way."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def interrupt_on_sigterm() -> None:
    """SIGTERM does what Ctrl-C does: an exception in the main thread, so that every block is left in order. Ray sets a
    handler of its own when a process joins a cluster: to be called again after that.
    """
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # taking everything down must not itself be interrupted
    raise KeyboardInterrupt(number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Taking down what was started is not cut short: Ctrl-C or SIGTERM meanwhile is raised when the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals interrupt the main thread alone
        return
    came: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, lambda number, _: came.append(number)) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, signal.SIG_DFL if handler is None else handler)
    if came:
        raise KeyboardInterrupt(came[0])
