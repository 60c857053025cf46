import os
import signal
import threading

import pytest

from app.local.signals import undisturbed


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_the_block(kind: signal.Signals) -> None:
    before = signal.getsignal(kind)
    done = []

    def work() -> None:
        with undisturbed():
            os.kill(os.getpid(), kind)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(kind) is before


def test_without_a_signal_nothing_is_raised() -> None:
    with undisturbed():
        pass


def test_an_error_of_the_block_is_not_replaced() -> None:
    def work() -> None:
        with undisturbed():
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        work()


def test_in_another_thread_it_changes_nothing() -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def look() -> None:
        with undisturbed():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(10)
    assert found == [before]
