"""Under any interleaving the book knows exactly what is open, and forgets what is closed."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.cache_report import PromptTokens
from app.serving.report_book import ReportBook

PROMPT = PromptTokens(10, 4, 2)
IDS = st.sampled_from(["0a", "1b", "2c"])


class Interleavings(RuleBasedStateMachine):
    """The book against a naive model: for each id how often it is open, whether it was reused, which prompts it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.book = ReportBook()
        self.holders: dict[str, int] = {}
        self.reused: set[str] = set()
        self.seen: dict[str, dict[str, Any]] = {}

    @rule(name=IDS)
    def open(self, name: str) -> None:
        self.book.open(name)
        if name in self.holders:
            self.reused.add(name)
        self.holders[name] = self.holders.get(name, 0) + 1

    @rule(name=IDS, number=st.none() | st.integers(0, 3), sample=st.integers(0, 2))
    def prefill(self, name: str, number: int | None, sample: int) -> None:
        external = f"chatcmpl-{name}" if number is None else f"cmpl-{name}-{number}"
        self.book.prefill(f"{sample}_{external}", external, PROMPT)
        if name in self.holders:
            self.seen.setdefault(name, {}).setdefault(external, (f"{sample}_{external}", PROMPT))

    @rule(name=IDS)
    def close(self, name: str) -> None:
        if name not in self.holders:
            with pytest.raises(KeyError):
                self.book.close(name)
            return
        self.book.close(name)
        self.holders[name] -= 1
        if not self.holders[name]:
            del self.holders[name]
            self.reused.discard(name)
            self.seen.pop(name, None)

    @invariant()
    def knows_what_is_open(self) -> None:
        self.book.check_integrity()
        assert len(self.book) == len(self.holders)
        for name in self.holders:
            expected = None if name in self.reused else list(self.seen.get(name, {}).values())
            assert self.book.peek(name) == expected

    def teardown(self) -> None:
        for name, count in self.holders.items():
            for _ in range(count):
                self.book.close(name)
        assert len(self.book) == 0, "a closed request was kept"


TestInterleavings = Interleavings.TestCase


def test_samples_of_one_prompt_count_once_and_prompts_of_a_batch_each() -> None:
    book = ReportBook()
    book.open("f00")
    book.prefill("0_x", "cmpl-f00-0", PROMPT)
    book.prefill("1_x", "cmpl-f00-0", PromptTokens(10, 10, 0))
    book.prefill("0_y", "cmpl-f00-1", PROMPT)
    assert book.peek("f00") == [("0_x", PROMPT), ("0_y", PROMPT)]


def test_prompts_of_nobody_are_not_kept() -> None:
    book = ReportBook()
    for external in ("cmpl-unknown", "unknown", "", "-", "cmpl-unknown-3"):
        book.prefill("x", external, PROMPT)
    assert len(book) == 0


def test_an_id_that_two_requests_share_has_no_report() -> None:
    book = ReportBook()
    book.open("f00")
    book.open("f00")
    book.prefill("0_x", "chatcmpl-f00", PROMPT)
    book.close("f00")
    assert book.peek("f00") is None, "whose prompt it was cannot be told"
