"""Exact lengths with a real tokenizer."""

from typing import Any

import pytest

from app.bench.load.prompts import Prompts
from app.errors import ModelError


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 500, 3000])
def test_texts_have_exactly_so_many_tokens(tokenizer: Any, tokens: int) -> None:
    text = Prompts(tokenizer).text(tokens, "a")
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == tokens
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("tokens", [20, 100, 1523])
def test_prompts_count_the_chat_template_and_the_history(tokenizer: Any, tokens: int) -> None:
    prompts = Prompts(tokenizer)
    first = prompts.user(tokens, "first")
    history = [first, {"role": "assistant", "content": prompts.text(7, "answer")}]
    second = prompts.user(tokens + 100, "second", history)
    assert prompts.prompt_length([first]) == tokens
    templated = tokenizer.apply_chat_template([*history, second], tokenize=True, add_generation_prompt=True)
    ids = templated["input_ids"] if isinstance(templated, dict) or hasattr(templated, "keys") else templated
    assert len(ids) == tokens + 100


def test_a_seed_and_a_name_decide_the_text(tokenizer: Any) -> None:
    assert Prompts(tokenizer, 1).text(50, "a") == Prompts(tokenizer, 1).text(50, "a")
    different = {Prompts(tokenizer, seed).text(50, name) for seed in (1, 2) for name in ("a", "b")}
    assert len(different) == 4


def test_a_prompt_that_is_too_short_for_its_template_is_refused(tokenizer: Any) -> None:
    with pytest.raises(ModelError, match="exactly 3 tokens"):
        Prompts(tokenizer).user(3, "a")
