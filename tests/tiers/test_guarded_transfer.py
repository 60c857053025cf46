"""A server that does not answer costs one wait, then nothing, until the heartbeat says that it is back."""

import threading
from typing import Any

import pytest

from app.tiers.guarded_transfer import guard

TIMEOUT = 2.0
METHODS = {"prepare_store": None, "commit_store": False, "prepare_retrieve": None, "commit_retrieve": False}


class Context:
    """Stands where LMCache's EngineDrivenContext does: answers, is slow, or raises, as it is told."""

    def __init__(self) -> None:
        self.mq_timeout = 300.0
        self.now = 0.0
        self.takes = 0.0
        self.error: Exception | None = None
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def _answer(self, name: str, args: tuple[Any, ...]) -> str:
        self.calls.append((name, args))
        self.now += self.takes
        if self.error is not None:
            raise self.error
        return f"answer to {name}"

    def prepare_store(self, *args: Any) -> Any:
        return self._answer("prepare_store", args)

    def commit_store(self, *args: Any) -> Any:
        return self._answer("commit_store", args)

    def prepare_retrieve(self, *args: Any) -> Any:
        return self._answer("prepare_retrieve", args)

    def commit_retrieve(self, *args: Any) -> Any:
        return self._answer("commit_retrieve", args)


@pytest.fixture
def healthy() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@pytest.fixture
def context(healthy: threading.Event) -> Context:
    made = Context()
    guard(made, healthy, TIMEOUT, clock=lambda: made.now)
    return made


@pytest.mark.parametrize("method", METHODS)
def test_answers_pass_unchanged(context: Context, healthy: threading.Event, method: str) -> None:
    assert getattr(context, method)("key", 7) == f"answer to {method}"
    assert context.calls == [(method, ("key", 7))]
    assert healthy.is_set()


@pytest.mark.parametrize(("method", "failure"), METHODS.items())
def test_an_error_is_a_miss_and_marks_the_server(
    context: Context, healthy: threading.Event, method: str, failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    context.error = TimeoutError("PREPARE_STORE timed out")
    assert getattr(context, method)() is failure
    assert not healthy.is_set()
    assert f"{method} failed (PREPARE_STORE timed out)" in caplog.text


@pytest.mark.parametrize(("method", "failure"), METHODS.items())
def test_a_server_known_to_be_gone_is_not_asked(
    context: Context, healthy: threading.Event, method: str, failure: Any
) -> None:
    healthy.clear()
    assert getattr(context, method)() is failure
    assert context.calls == []


def test_only_the_first_missing_answer_is_waited_for(context: Context, healthy: threading.Event) -> None:
    context.takes, context.error = TIMEOUT, TimeoutError()
    for _ in range(10):
        for method in METHODS:
            getattr(context, method)()
    assert context.now == TIMEOUT
    healthy.set()  # the heartbeat registered again
    context.takes, context.error = 0.0, None
    assert context.prepare_retrieve() == "answer to prepare_retrieve"


def test_an_answer_that_took_as_long_as_a_time_out_counts_as_missing(
    context: Context, healthy: threading.Event
) -> None:
    """LMCache's pickle transport swallows its time-outs: only the clock tells."""
    context.takes = TIMEOUT - 0.01
    context.commit_store()
    assert healthy.is_set()
    context.takes = TIMEOUT
    assert context.commit_store() == "answer to commit_store"
    assert not healthy.is_set()


def test_the_contexts_own_time_out_is_shortened(context: Context) -> None:
    assert context.mq_timeout == TIMEOUT


def test_what_ends_a_process_is_not_swallowed(context: Context) -> None:
    context.error = None

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    other = Context()
    other.prepare_store = interrupted  # type: ignore[method-assign]
    event = threading.Event()
    event.set()
    guard(other, event, TIMEOUT, clock=lambda: 0.0)
    with pytest.raises(KeyboardInterrupt):
        other.prepare_store()
