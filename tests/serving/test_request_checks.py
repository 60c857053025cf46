"""Whatever a body holds, in fields that its model declares and in all others, ends in a refusal of ours or in none."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from ray.llm._internal.serve.core.configs.openai_api_models import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    ScoreRequest,
    TokenizeRequest,
)

from app.serving.field_error import FieldError
from app.serving.form_checks import asks_for_form
from app.serving.model_checks import ModelBounds, check_for_model
from app.serving.request_checks import check_request

TEXT_MODEL = ModelBounds(token_ids=99, rows=100, characters=1000, reads_media=False)
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: list[tuple[Any, dict[str, Any]]] = [
    (ChatCompletionRequest, {"messages": MESSAGES}),
    (CompletionRequest, {"prompt": "x"}),
    (EmbeddingRequest, {"input": "x"}),
    (EmbeddingRequest, {"messages": MESSAGES}),
    (ScoreRequest, {"text_1": "x", "text_2": ["y"]}),
    (ScoreRequest, {"queries": "x", "documents": ["y"]}),
    (TokenizeRequest, {"prompt": "x"}),
    (TokenizeRequest, {"messages": MESSAGES}),
    (DetokenizeRequest, {"tokens": [1]}),
]
READERS = [(TypeAdapter(model), smallest) for model, smallest in BODIES]


def _names(model: Any) -> set[str]:
    members = getattr(model, "__args__", (model,))
    return {name for member in members for name in member.model_fields}


FIELDS = sorted({name for model, _ in BODIES for name in _names(model)} | {"grammar", "pattern", "minItems", "enum"})
NUMBERS = st.one_of(st.integers(), st.integers(9 * 10**3, 10**4), st.just(10**400), st.floats(allow_nan=False))
TEXTS = st.text(max_size=20) | st.sampled_from(['{"minItems":1' + "0" * 400 + "}", "(a{9999})", "["])
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
KEYS = st.sampled_from(FIELDS) | st.text(max_size=4)
ANY = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


@settings(max_examples=500)
@given(reader=st.sampled_from(READERS), fields=st.dictionaries(st.sampled_from(FIELDS), ANY, max_size=4))
def test_nothing_else_is_raised(reader: tuple[TypeAdapter[Any], dict[str, Any]], fields: dict[str, Any]) -> None:
    adapter, smallest = reader
    try:
        body = adapter.validate_python(smallest | fields)
    except Exception:  # what Ray and vLLM refuse while they read it is http_errors.py's
        return
    with contextlib.suppress(FieldError):
        check_request(body)
        check_for_model(body, TEXT_MODEL)
    asks_for_form(body)


@pytest.mark.parametrize(
    "reader", READERS, ids=["-".join(smallest) + str(at) for at, (_, smallest) in enumerate(BODIES)]
)
@pytest.mark.parametrize("value", [True, 5, [5], [None], {"a": 10**400}], ids=repr)
def test_fields_of_other_endpoints_are_looked_at_as_they_are(
    reader: tuple[TypeAdapter[Any], dict[str, Any]], value: Any
) -> None:
    adapter, smallest = reader
    for field in FIELDS:
        try:
            body = adapter.validate_python(smallest | {field: value})
        except Exception:
            continue
        with contextlib.suppress(FieldError):
            check_request(body)
            check_for_model(body, TEXT_MODEL)
