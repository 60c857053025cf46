"""Where a report is written into an answer, and where it is not."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.entrypoints.serve.engine.protocol import UsageInfo

from app.cache_report import CacheReport
from app.serving.usage_details import has_usage, with_report

REPORT = CacheReport(l0=64, external=128, computed=8, l1=64, l2=64, replica="replica-1")
USAGE: dict[str, Any] = {"id": "x", "choices": [], "usage": {"prompt_tokens": 200}}


def event(message: Any) -> str:
    return f"data: {json.dumps(message, separators=(',', ':'))}\n\n"


@pytest.mark.parametrize("in_stream", [False, True])
def test_a_whole_answer_with_usage_is_written_into(in_stream: bool) -> None:
    response = SimpleNamespace(usage=UsageInfo(prompt_tokens=200, total_tokens=201, completion_tokens=1))
    assert has_usage(response, in_stream=in_stream)
    assert with_report(response, REPORT) is response
    assert REPORT.details().items() <= response.usage.prompt_tokens_details.model_dump().items()


def test_of_a_batch_only_the_event_with_usage_is_another() -> None:
    text = event({"choices": [{"delta": {"content": "hello"}}]})
    first, last = with_report([text, event(USAGE)], REPORT)
    assert first == text
    usage = {"prompt_tokens": 200, "prompt_tokens_details": REPORT.details()}
    assert last == event({**USAGE, "usage": usage})


def test_a_stream_has_usage_only_if_it_was_asked_for() -> None:
    assert has_usage(event(USAGE), in_stream=True)
    assert has_usage([event(USAGE)], in_stream=True)
    assert not has_usage(event(USAGE), in_stream=False)


def test_words_of_an_answer_are_not_taken_for_usage() -> None:
    """A model may write what looks like the last chunk; JSON escapes its quotes."""
    said = event({"choices": [{"delta": {"content": '"choices":[] "usage":{'}}]})
    assert not has_usage(said, in_stream=True)
    assert with_report(said, REPORT) == said


@pytest.mark.parametrize("response", [None, SimpleNamespace(usage=None), SimpleNamespace(error="no"), b"", "", []])
def test_what_carries_none_has_none(response: Any) -> None:
    assert not has_usage(response, in_stream=True)
