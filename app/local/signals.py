"""A command that has started processes ends them when it is told to end, in whichever way."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass
class Haste:
    """Whether a signal came that cuts short what is under way."""

    came: bool = False


@contextmanager
def cut_short_by_signals() -> Iterator[Haste]:
    """Ctrl-C or SIGTERM ends the block where it is, without an error, and says so in what is yielded. Later ones are
    ignored until the block has been left.

    The exception is KeyboardInterrupt, since Ray's calls pass on no other that a signal's handler raises (2.60.0).
    """
    haste = Haste()
    if threading.current_thread() is not threading.main_thread():
        yield haste  # signals interrupt the main thread alone
        return
    kinds = (signal.SIGINT, signal.SIGTERM)

    def cut(number: int, _: FrameType | None) -> None:
        for kind in kinds:
            signal.signal(kind, signal.SIG_IGN)
        haste.came = True
        raise KeyboardInterrupt(number)

    before = {kind: signal.signal(kind, cut) for kind in kinds}
    try:
        try:
            yield haste
        finally:
            for kind, handler in before.items():
                signal.signal(kind, signal.SIG_DFL if handler is None else handler)
    except KeyboardInterrupt:  # around the restoring too: a signal may come just before it
        if not haste.came:
            raise
