import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve.llm.openai_api_models import ChatCompletionRequest
from starlette.exceptions import HTTPException

from app.serving.field_checks import _fault, check_fields, check_token_ids
from app.serving.field_error import FieldError


def body(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(messages=[{"role": "user", "content": "hi"}], **fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chat_template_kwargs", {"a": -(2**63) - 1}),
        ("chat_template_kwargs", {"inner": [{"most": 2**80}]}),
        ("vllm_xargs", {"a": [1, 2**64]}),
    ],
)
def test_numbers_that_the_engine_cannot_be_sent_are_refused(field: str, value: Any) -> None:
    with pytest.raises(HTTPException) as refused:
        check_fields(body(**{field: value}))
    assert refused.value.status_code == 400
    assert refused.value.detail == f"{field}: numbers must fit into 64 bits."


@pytest.mark.parametrize("value", [None, {}, {"a": [-(2**63), 2**64 - 1, True, 1e300, "x", None]}])
def test_all_others_pass(value: Any) -> None:
    check_fields(body(chat_template_kwargs=value, priority=-1, seed=2**62))


@pytest.mark.parametrize("field", ["kv_transfer_params", "ec_transfer_params"])
def test_nobody_tells_the_engine_s_connectors_what_to_do(field: str) -> None:
    refusals: list[tuple[dict[str, Any], str]] = [
        ({field: {}}, field),
        ({"vllm_xargs": {field: 5}}, f"vllm_xargs.{field}"),
    ]
    for fields, path in refusals:
        with pytest.raises(FieldError, match="leave it out") as refused:
            check_fields(body(**fields))
        assert refused.value.param == path
    check_fields(body(vllm_xargs={"other": 5}))


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "a\ud800b"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a\ud800b"}]}]},
        {"messages": [{"role": "user", "content": "hi"}], "stop": ["\udfff"]},
        {"messages": [{"role": "user", "content": "hi"}], "vllm_xargs": {"\udfff": 1}},
        {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"enum": [1, "\udfff"]}}}],
        },
    ],
)
def test_text_that_nothing_can_encode_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(HTTPException, match="lone surrogates") as refused:
        check_fields(ChatCompletionRequest(**fields))
    assert refused.value.status_code == 400


def test_text_beyond_ascii_passes() -> None:
    check_fields(ChatCompletionRequest(messages=[{"role": "user", "content": "häß 漢字 \U0001f600"}], stop=["é"]))


def test_data_that_is_deep_is_looked_through() -> None:
    deep: Any = 2**80
    for _ in range(100_000):
        deep = [deep]
    assert _fault(deep, is_sent=True) is not None
    assert _fault(deep, is_sent=False) is None


@given(
    st.recursive(
        st.integers(-(2**70), 2**70) | st.text(st.characters(), max_size=3),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=2), inner),
    )
)
def test_one_walk_finds_what_a_plain_one_does(value: Any) -> None:
    def texts(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [*value, *itertools.chain(*map(texts, value.values()))]
        return (
            list(itertools.chain(*map(texts, value)))
            if isinstance(value, list)
            else [value]
            if isinstance(value, str)
            else []
        )

    def numbers(value: Any) -> list[int]:
        if isinstance(value, (dict, list)):
            inner = value.values() if isinstance(value, dict) else value
            return list(itertools.chain(*map(numbers, inner)))
        return [value] if isinstance(value, int) else []

    bad_text = any(any("\ud800" <= character <= "\udfff" for character in text) for text in texts(value))
    bad_number = any(not -(2**63) <= number < 2**64 for number in numbers(value))
    assert (_fault(value, is_sent=True) is not None) == (bad_text or bad_number)


def test_a_token_id_that_does_not_exist_is_named_with_its_place() -> None:
    check_token_ids([0, 9], 9)
    check_token_ids([], 9)
    for tokens, said in (([1, 10, 11], "tokens[1]: 10 is"), ([-1], "tokens[0]: -1 is")):
        with pytest.raises(HTTPException) as refused:
            check_token_ids(tokens, 9)
        assert (refused.value.status_code, refused.value.detail.startswith(said)) == (400, True)
