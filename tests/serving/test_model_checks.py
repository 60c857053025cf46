"""Ids without a row, texts that are cut after they were tokenised, media for a model that reads text."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.llm._internal.serve.core.configs.openai_api_models import EmbeddingChatRequest, EmbeddingCompletionRequest
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest

from app.serving.field_error import FieldError
from app.serving.model_checks import ModelBounds, bounds_of, check_for_model

BOUNDS = ModelBounds(token_ids=97, rows=100, characters=40, reads_media=False)
URL = {"url": "http://10.0.0.1/x"}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "s"}, {"role": "user", "content": list(parts)}]


@pytest.mark.parametrize("prompt", [[0, 99], [[99], [1, 2]], "text", ["a", "b"]])
def test_ids_that_the_model_has_a_row_for_pass_though_its_tokenizer_knows_fewer(prompt: Any) -> None:
    check_for_model(CompletionRequest(prompt=prompt), BOUNDS)
    check_for_model(EmbeddingCompletionRequest(input=prompt), BOUNDS)


def test_an_id_that_ends_the_engine_is_named_with_its_place() -> None:
    refusals: list[tuple[Any, str]] = [
        (CompletionRequest(prompt=[1, 100]), "prompt[1]"),
        (CompletionRequest(prompt=[[1], [2, 3, 100]]), "prompt[1][2]"),
        (EmbeddingCompletionRequest(input=[100]), "input[0]"),
    ]
    for body, path in refusals:
        with pytest.raises(FieldError, match="100 is no token id: they lie between 0 and 99") as refused:
            check_for_model(body, BOUNDS)
        assert refused.value.param == path


@pytest.mark.parametrize("field", ["truncate_prompt_tokens", "max_tokens_per_doc", "max_tokens_per_query"])
def test_what_is_cut_after_it_was_tokenised_is_bounded_before(field: str) -> None:
    long = SimpleNamespace(text_1="a", text_2="b" * 41)
    check_for_model(long, BOUNDS)  # vLLM refuses it by itself
    with pytest.raises(FieldError, match="text_2: at most 40 characters"):
        check_for_model(SimpleNamespace(**vars(long), **{field: 5}), BOUNDS)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": URL}, "image_url"),
        ({"type": "video_url", "video_url": URL}, "video_url"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "input_audio"),
        ({"image_url": "http://10.0.0.1/x"}, "image_url"),
    ],
)
def test_nothing_is_fetched_for_a_model_that_reads_text(part: dict[str, Any], kind: str) -> None:
    bodies: list[tuple[Any, str]] = [
        (ChatCompletionRequest(messages=user({"type": "text", "text": "a"}, part)), "messages[1].content"),
        (EmbeddingChatRequest(messages=user(part)), "messages[1].content"),
        (SimpleNamespace(data_1="a", data_2=[{"content": [part]}]), "data_2"),
    ]
    seeing = ModelBounds(token_ids=97, rows=100, characters=40, reads_media=True)
    for body, path in bodies:
        check_for_model(body, seeing)
        with pytest.raises(FieldError, match=f"reads text only, not `{kind}`") as refused:
            check_for_model(body, BOUNDS)
        assert refused.value.param == path


def test_text_that_speaks_of_media_is_text() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"image_url": {}}}}}]
    check_for_model(ChatCompletionRequest(messages=user({"type": "text", "text": "image_url"}), tools=tools), BOUNDS)


def test_bounds_are_read_off_the_engine_s_client() -> None:
    tokenizer = SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 97}, max_chars_per_token=4)
    config = SimpleNamespace(get_vocab_size=lambda: 100, max_model_len=10, is_multimodal_model=False)
    assert bounds_of(SimpleNamespace(model_config=config, get_tokenizer=lambda: tokenizer)) == BOUNDS

    def none() -> Any:
        raise ValueError("Tokenizer not available when `skip_tokenizer_init=True`")

    assert bounds_of(SimpleNamespace(model_config=config, get_tokenizer=none)) == ModelBounds(99, 100, 0, False)
