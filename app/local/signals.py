"""A command that has started processes ends them when it is told to end, in whichever way."""

import signal
from types import FrameType


def interrupt_on_sigterm() -> None:
    """SIGTERM does what Ctrl-C does: an exception in the main thread, so that every block is left in order. Ray sets a
    handler of its own when a process joins a cluster: to be called again after that.
    """
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # taking everything down must not itself be interrupted
    raise KeyboardInterrupt(number)
