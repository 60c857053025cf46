"""One core per deployment and process, and tokenising that can only ever cost the tokens."""

import threading
from array import array
from collections.abc import Sequence

import pytest

from app.routing import registry


@pytest.fixture(autouse=True)
def clean() -> None:
    registry.set_tokenizer("app", "llm", None)


async def test_tokens_come_packed_from_a_thread() -> None:
    threads: list[str] = []

    def tokenizer(body: object) -> Sequence[int]:
        threads.append(threading.current_thread().name)
        return [1, 2, 3]

    registry.set_tokenizer("app", "llm", tokenizer)
    assert await registry.tokenize("app", "llm", {}) == array("I", [1, 2, 3])
    assert threads[0].startswith("tokenize")


async def test_no_tokenizer_no_tokens() -> None:
    assert await registry.tokenize("app", "llm", {}) is None


@pytest.mark.parametrize("tokens", [None, [-1], ["a"], 5])
async def test_nonsense_is_no_tokens(tokens: object) -> None:
    registry.set_tokenizer("app", "llm", lambda body: tokens)  # type: ignore[arg-type, return-value]
    assert await registry.tokenize("app", "llm", {}) is None


async def test_one_that_takes_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TOKENIZE_S", 0.02)
    done = threading.Event()
    registry.set_tokenizer("app", "llm", lambda body: [1] if done.wait(30) else None)
    assert await registry.tokenize("app", "llm", {}) is None
    done.set()


def test_a_changed_configuration_makes_a_new_core() -> None:
    core = registry.open_core("app", "llm", "prefix_aware", {})
    assert registry.open_core("app", "llm", "prefix_aware", {}) is core is registry.find_core("app", "llm")
    assert registry.open_core("app", "other", "prefix_aware", {}) is not core
    assert registry.open_core("app", "llm", "prefix_aware", {"load_weight": 2.0}) is not core
    registry.close_core("app", "llm")
    assert registry.find_core("app", "llm") is None
    registry.close_core("app", "other")
