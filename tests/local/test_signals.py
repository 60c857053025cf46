import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from app.local.signals import cut_short_by_signals, undisturbed

PROGRAM = """
import signal, sys
from contextlib import ExitStack
from app.local.signals import interrupt_on_sigterm

interrupt_on_sigterm()
with ExitStack() as stack:
    stack.callback(print, "cleaned up", flush=True)
    print("ready", flush=True)
    signal.pause()
"""


def test_being_told_to_end_leaves_every_block(root: object) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=str(root), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert said == "cleaned up\n"
    assert process.returncode != 0


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


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cuts_a_block_short_that_allows_it(kind: signal.Signals) -> None:
    before, done = signal.getsignal(kind), []
    with cut_short_by_signals() as haste:
        done.append("begun")
        os.kill(os.getpid(), kind)
        done.append("ended")
    assert (haste.came, done) == (True, ["begun"])
    assert signal.getsignal(kind) is before


def test_a_block_that_nobody_cuts_short_ends_as_it_is() -> None:
    with cut_short_by_signals() as haste:
        pass
    assert not haste.came

    def work() -> None:
        with cut_short_by_signals():
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        work()


def test_what_cuts_a_block_short_passes_by_whoever_catches_exceptions() -> None:
    with cut_short_by_signals() as haste, suppress(Exception):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("not cut")
    assert haste.came


def test_anybody_elses_interrupt_is_not_taken_for_a_signal() -> None:
    def work() -> None:
        with cut_short_by_signals():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
