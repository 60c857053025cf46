from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest

from app.serving.field_error import FieldError
from app.serving.size_checks import MAX_BAD_WORDS, MAX_BATCH, MAX_SEQUENCES, check_count, check_length, check_sizes


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(messages=[{"role": "user", "content": "hi"}], **fields)


def test_more_choices_than_openai_gives_are_refused() -> None:
    check_sizes(chat(n=128))
    with pytest.raises(FieldError, match="n: at most 128 choices, not 129"):
        check_sizes(chat(n=129))


@pytest.mark.parametrize("prompt", ["a", [1] * 5000, ["a"] * 1024, [[1, 2]] * 1024])
def test_as_many_prompts_as_others_take(prompt: Any) -> None:
    check_sizes(CompletionRequest(prompt=prompt))


@pytest.mark.parametrize(("prompt", "n", "sequences"), [(["a"] * 1024, 3, 3072), ([[1]] * 17, 128, 2176)])
def test_more_are_refused_each_choice_counted(prompt: Any, n: int, sequences: int) -> None:
    with pytest.raises(FieldError, match=f"at most 2048 prompts times `n` in one request, not {sequences}") as refused:
        check_sizes(CompletionRequest(prompt=prompt, n=n))
    assert refused.value.param == "prompt"


def test_batches_for_other_endpoints_are_bounded_too() -> None:
    check_sizes(SimpleNamespace(input=["a"] * MAX_SEQUENCES))
    with pytest.raises(FieldError, match="documents: at most 2048"):
        check_sizes(SimpleNamespace(documents=["a"] * (MAX_SEQUENCES + 1)))


def test_a_conversation_has_its_bound() -> None:
    with pytest.raises(FieldError, match="messages: at most 10000 messages, not 10001"):
        check_sizes(SimpleNamespace(messages=[{}] * 10_001))


def test_token_ids_have_theirs() -> None:
    check_count("tokens", range(1_000_000))
    with pytest.raises(FieldError, match="tokens: at most 1000000 token ids, not 1000001"):
        check_count("tokens", range(1_000_001))


def test_bad_words_are_few() -> None:
    check_sizes(chat(bad_words=["a" * 10] * (MAX_BAD_WORDS // 10)))
    with pytest.raises(FieldError, match="bad_words: at most 20000 characters together, not 30000000"):
        check_sizes(chat(bad_words=["a" * 300_000] * 100))


def test_texts_that_are_only_tokenised_have_a_bound() -> None:
    texts = chat(tools=[{"type": "function", "function": {"name": "f", "description": "d" * 50}}])
    check_length(texts, 100)
    with pytest.raises(FieldError, match=r"at most 40 characters, .* not 59") as refused:
        check_length(texts, 40)
    assert refused.value.param == "tools"
    for prompt in ("a" * 41, ["a", "b" * 41]):
        with pytest.raises(FieldError, match=r"prompt: at most 40 characters, .* not 41"):
            check_length(CompletionRequest(prompt=prompt), 40)


def test_each_text_of_a_batch_has_its_own_bound_and_all_have_one_together() -> None:
    batch = CompletionRequest(prompt=["a" * 30, "b" * 30])
    check_length(batch, 40)
    with pytest.raises(FieldError, match=f"prompt: at most {MAX_BATCH} characters together, not {2 * MAX_BATCH}"):
        check_length(SimpleNamespace(prompt=["a" * (MAX_BATCH // 10)] * 20), MAX_BATCH // 2)
