from typing import Any

import pytest
from ray.serve.llm.openai_api_models import ChatCompletionRequest
from starlette.exceptions import HTTPException

from app.serving.request_checks import check_body


def body(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(messages=[{"role": "user", "content": "hi"}], **fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_transfer_params", {"a": -(2**63) - 1}),
        ("kv_transfer_params", {"inner": [{"most": 2**80}]}),
        ("vllm_xargs", {"a": [1, 2**64]}),
    ],
)
def test_numbers_that_the_engine_cannot_be_sent_are_refused(field: str, value: Any) -> None:
    with pytest.raises(HTTPException) as refused:
        check_body(body(**{field: value}))
    assert refused.value.status_code == 400
    assert refused.value.detail == f"{field}: numbers must fit into 64 bits."


@pytest.mark.parametrize("value", [None, {}, {"a": [-(2**63), 2**64 - 1, True, 1e300, "x", None]}])
def test_all_others_pass(value: Any) -> None:
    check_body(body(kv_transfer_params=value, priority=-1, seed=2**62))


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "a\ud800b"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a\ud800b"}]}]},
        {"messages": [{"role": "user", "content": "hi"}], "stop": ["\udfff"]},
    ],
)
def test_text_that_nothing_can_encode_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(HTTPException, match="lone surrogates") as refused:
        check_body(ChatCompletionRequest(**fields))
    assert refused.value.status_code == 400


def test_text_beyond_ascii_passes() -> None:
    check_body(ChatCompletionRequest(messages=[{"role": "user", "content": "häß 漢字 \U0001f600"}], stop=["é"]))
