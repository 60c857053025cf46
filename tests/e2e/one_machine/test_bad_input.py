"""What clients get wrong ends in a 4xx of OpenAI's shape that says what: never a 500, a hang, a dead replica."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.conftest import Served
from tests.e2e.one_machine.test_serving import MODEL

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
# Module paths, class names of exceptions and tracebacks have no business in a message.
INTERNAL = re.compile(
    r"Traceback|\bvllm\.|\bray\.|lmcache|Internal exception|[A-Z]\w+(Error|Exception)\b|pydantic|<class"
)


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def engines_survive(served: Served) -> Iterator[None]:
    before = served.pids_of("VLLM::EngineCore")
    assert len(before) == 2
    yield
    assert served.pids_of("VLLM::EngineCore") == before, "an engine died of bad input"


def check_error(response: httpx.Response) -> dict[str, Any]:
    assert 400 <= response.status_code < 500, (
        f"{response.status_code}: {response.text} to {response.request.content[:500]!r}"
    )
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["message"], str), error
    assert error["message"], error
    assert not INTERNAL.search(error["message"]), error["message"]
    found: dict[str, Any] = error
    return found


BAD: list[tuple[str, str, Any, int, str]] = [
    ("broken json", CHAT, b'{"model": ', 400, "not valid JSON"),
    ("json that is no object", CHAT, [1, 2], 400, ""),
    ("nothing", CHAT, b"", 400, ""),
    ("no messages", CHAT, {"model": MODEL}, 400, "messages"),
    ("unknown model", CHAT, {"model": "gpt-9", "messages": HELLO}, 404, "gpt-9"),
    ("model of a wrong type", CHAT, {"model": 7, "messages": HELLO}, 400, "model"),
    ("empty messages", CHAT, {"model": MODEL, "messages": []}, 400, ""),
    ("null as messages", CHAT, {"model": MODEL, "messages": None}, 400, ""),
    ("messages of a wrong type", CHAT, {"model": MODEL, "messages": "hello"}, 400, "messages"),
    ("a message without a role", CHAT, {"model": MODEL, "messages": [{"content": "hello"}]}, 400, ""),
    ("a number as content", CHAT, {"model": MODEL, "messages": [{"role": "user", "content": 5}]}, 400, ""),
    ("an image to a text model", CHAT, {"model": MODEL, "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]}, 400, ""),
    ("an image at an address", CHAT, {"model": MODEL, "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}]}]}, 400, "reads text only"),
    ("an unknown content part", CHAT, {"model": MODEL, "messages": [{"role": "user", "content": [
        {"type": "hologram", "hologram": 1}]}]}, 400, ""),
    ("max_tokens 0", CHAT, {"model": MODEL, "messages": HELLO, "max_tokens": 0}, 400, "max_tokens"),
    ("max_tokens -1", CHAT, {"model": MODEL, "messages": HELLO, "max_tokens": -1}, 400, "max_tokens"),
    ("max_tokens as text", CHAT, {"model": MODEL, "messages": HELLO, "max_tokens": "many"}, 400, "max_tokens"),
    ("temperature -1", CHAT, {"model": MODEL, "messages": HELLO, "temperature": -1}, 400, "temperature"),
    ("top_p 7", CHAT, {"model": MODEL, "messages": HELLO, "top_p": 7}, 400, "top_p"),
    ("n 0", CHAT, {"model": MODEL, "messages": HELLO, "n": 0}, 400, ""),
    ("a prompt beyond the window", CHAT, {"model": MODEL, "messages": [
        {"role": "user", "content": "word " * 9000}]}, 400, "context length"),
    ("an empty salt", CHAT, {"model": MODEL, "messages": HELLO, "cache_salt": ""}, 400, "salt"),
    ("a number beyond msgpack", CHAT, {"model": MODEL, "messages": HELLO, "vllm_xargs": {"a": [-(2**63) - 1]}},
        400, "64 bits"),
    ("an order to the connector", CHAT, {"model": MODEL, "messages": HELLO, "kv_transfer_params": {"lmcache.x": 1}},
        400, "kv_transfer_params"),
    ("an order that ends the scheduler", COMPLETIONS, {"model": MODEL, "prompt": "x",
        "vllm_xargs": {"kv_transfer_params": 5}}, 400, "vllm_xargs.kv_transfer_params"),
    ("a field of another endpoint", COMPLETIONS, {"model": MODEL, "prompt": "x", "messages": True,
        "vllm_xargs": {"kv_transfer_params": 5}}, 400, "vllm_xargs.kv_transfer_params"),
    ("stream as text", CHAT, {"model": MODEL, "messages": HELLO, "stream": "perhaps"}, 400, "stream"),
    ("an unknown tool choice", CHAT, {"model": MODEL, "messages": HELLO, "tool_choice": {"type": "function",
        "function": {"name": "nothing"}}}, 400, ""),
    ("a broken schema", CHAT, {"model": MODEL, "messages": HELLO, "response_format": {"type": "json_schema"}}, 400, ""),
    ("text that is not UTF-8", CHAT, b'{"model": "\xff"}', 400, "byte 0xff at offset 11"),
    ("a number that is none", COMPLETIONS, b'{"prompt": "a", "temperature": NaN}', 400, "NaN is no JSON number"),
    ("lists without an end", "/tokenize", b'{"prompt": ' + b"[" * 100_000, 400, "deeper than 100 levels"),
    ("more choices than there may be", CHAT, {"model": MODEL, "messages": HELLO, "n": 129}, 400, "at most 128"),
    ("a text beyond any context", "/tokenize", {"model": MODEL, "prompt": "a" * 1_000_000}, 400, "prompt: at most"),
    ("a list of a billion", CHAT, {"model": MODEL, "messages": HELLO, "structured_outputs": {"json": {"type": "array",
        "minItems": 10**9}}}, 400, "minItems may be 100000 at most"),
    ("two million brackets", COMPLETIONS, {"model": MODEL, "prompt": "x", "structured_outputs": {"json": {
        "type": "string", "pattern": "(" * 2_000_000 + "a" + ")" * 2_000_000}}}, 400, "50000 characters at most"),
    ("a grammar without an end", CHAT, {"model": MODEL, "messages": HELLO, "structured_outputs": {
        "grammar": "root ::= root"}}, 400, "can make nothing of this grammar"),
    ("a schema that no library takes", CHAT, {"model": MODEL, "messages": HELLO, "structured_outputs": {"json": {
        "type": "object", "patternProperties": {"^a": {"type": "string"}}}}}, 400, ""),
    ("a token id that does not exist", "/detokenize", {"model": MODEL, "tokens": [1, 49152]}, 400, "tokens[1]: 49152"),
    ("no prompt", COMPLETIONS, {"model": MODEL}, 400, ""),
    ("an empty list as prompt", COMPLETIONS, {"model": MODEL, "prompt": []}, 400, ""),
    ("token ids beyond the vocabulary", COMPLETIONS, {"model": MODEL, "prompt": [99999999]}, 400, ""),
    ("a token id that ends the engine", COMPLETIONS, {"model": MODEL, "prompt": [1, 49152]}, 400, "prompt[1]: 49152"),
    ("negative token ids", COMPLETIONS, {"model": MODEL, "prompt": [-5, -6]}, 400, ""),
    ("a mixed batch", COMPLETIONS, {"model": MODEL, "prompt": ["text", 5]}, 400, ""),
    ("too many token ids", COMPLETIONS, {"model": MODEL, "prompt": [504] * 5000}, 400, "context length"),
    ("logprobs -3", COMPLETIONS, {"model": MODEL, "prompt": "x", "logprobs": -3}, 400, ""),
    ("embeddings of a chat model", "/v1/embeddings", {"model": MODEL, "input": "x"}, 400, "embedding"),
    ("score of a chat model", "/v1/score", {"model": MODEL, "text_1": "x", "text_2": "y"}, 400, "score"),
    ("an answer that is no JSON", "/v1/embeddings", {"model": MODEL, "input": "x", "encoding_format": "bytes"}, 400,
        "`float` or `base64`"),
    ("a template's own name", CHAT, {"model": MODEL, "messages": HELLO, "chat_template_kwargs": {"tokenizer": 1}}, 400,
        "chat_template_kwargs.tokenizer"),
    ("nothing to tokenize", "/tokenize", {"model": MODEL}, 400, ""),
    ("detokenize text", "/detokenize", {"model": MODEL, "tokens": "abc"}, 400, "tokens"),
    ("detokenize an unknown id", "/detokenize", {"model": MODEL, "tokens": [10**12]}, 400, ""),
    ("an unknown path", "/v1/chat/complete", {"model": MODEL, "messages": HELLO}, 404, ""),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "says"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_says_what_is_wrong(http: httpx.Client, path: str, body: Any, status: int, says: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = http.post(path, content=content, headers={"Content-Type": "application/json"})
    error = check_error(response)
    assert response.status_code == status, response.text
    assert says in error["message"] + str(error["param"]), error


def test_a_stream_that_cannot_start_is_an_error_and_not_a_stream(http: httpx.Client) -> None:
    check_error(http.post(CHAT, json={"model": MODEL, "messages": HELLO, "stream": True, "max_tokens": -4}))


def test_what_one_client_may_not_ask_others_may(http: httpx.Client) -> None:
    """After all of the above: grammars that every library takes are made."""
    response = http.post(
        CHAT, json={"model": MODEL, "messages": HELLO, "structured_outputs": {"choice": ["yes", "no"]}, "max_tokens": 4}
    )
    assert response.json()["choices"][0]["message"]["content"] in ("yes", "no"), response.text


@pytest.mark.parametrize("salt", ["a/b@c", "x" * 500, "\u0000", "ünïcode"])
def test_any_salt_is_kept_from_the_cache_server(http: httpx.Client, salt: str) -> None:
    """LMCache refuses some salts by an exception in the engine's scheduler, which would end the engine."""
    response = http.post(CHAT, json={"model": MODEL, "messages": HELLO, "max_tokens": 1, "cache_salt": salt})
    assert response.status_code in (200, 400), response.text


def test_the_wrong_method(http: httpx.Client) -> None:
    assert http.get(CHAT).status_code == 405
    assert http.get(CHAT).json()["error"]["message"]


SMALLEST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO},
    COMPLETIONS: {"prompt": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
    "/v1/embeddings": {"input": "x"},
    "/v1/score": {"text_1": "x", "text_2": "y"},
}
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), FLOATS, st.text(max_size=20))
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["messages", "prompt", "max_tokens", "temperature", "top_p", "top_k", "n", "stop", "seed", "stream", "logprobs",
     "echo",
     "top_logprobs", "presence_penalty", "logit_bias", "tools", "tool_choice", "response_format", "user", "cache_salt",
     "stream_options", "min_tokens", "stop_token_ids", "kv_transfer_params", "vllm_xargs", "priority", "request_id",
     "guided_json", "truncate_prompt_tokens", "prompt_logprobs", "chat_template_kwargs", "continue_final_message",
     "best_of", "suffix", "input", "tokens", "bad_words", "ec_transfer_params", "structured_outputs", "encoding_format"]
)  # fmt: skip


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(sorted(SMALLEST)), fields=st.dictionaries(FIELDS, JSON, max_size=3))
def test_any_json_is_answered_or_refused(http: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    response = http.post(path, json={"model": MODEL, "max_tokens": 1} | SMALLEST[path] | fields)
    if response.status_code != 200:
        check_error(response)
