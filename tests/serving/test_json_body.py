"""What a body may not be, and that the refusal names it and its place."""

import gzip
import json
from contextlib import suppress
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from starlette.testclient import TestClient

from app.serving import strict_route
from app.serving.http_errors import install_error_handlers
from app.serving.json_body import MAX_DEPTH, BodyError, parse_object


def refusal(body: bytes) -> str:
    with pytest.raises(BodyError) as refused:
        parse_object(body, "EXAMPLE")
    assert refused.value.status_code == 400
    return refused.value.detail


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"a": "\xff"}', "The body is not valid UTF-8: byte 0xff at offset 7."),
        (b'{"a": ', "The body is not valid JSON: Expecting value at line 1, column 7."),
        (b'{"a": 1}\n {', "The body is not valid JSON: Extra data at line 2, column 2."),
        (b'{"a": "b', "The body is not valid JSON: Unterminated string starting at line 1, column 7."),
        (
            json.dumps(dict.fromkeys(map(str, range(1001)))).encode(),
            "The body has 1001 fields; no request has more than 1000.",
        ),
        (b" ", "The body is not valid JSON: Expecting value at line 1, column 2."),
        (b'{"a": "NaN",\n "b": NaN}', "The body cannot be read: NaN is no JSON number at line 2, column 7."),
        (b'[-Infinity, "x"]', "The body cannot be read: -Infinity is no JSON number at line 1, column 2."),
        (b'{"a": -1e999}', "The body cannot be read: -1e999 is too large a number at line 1, column 7."),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', 'The body cannot be read: the key "b" stands twice in one object.'),
        (b'{"a": ' + b"9" * 5000 + b"}", "The body cannot be read: a number has too many digits at line 1, column 7."),
        (b"null", "The body must be a JSON object, not null, for example EXAMPLE"),
        (b"[1]", "The body must be a JSON object, not a list, for example EXAMPLE"),
        (b"1.5", "The body must be a JSON object, not a number, for example EXAMPLE"),
        (b'"{}"', "The body must be a JSON object, not a text, for example EXAMPLE"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(body: bytes, says: str) -> None:
    assert refusal(body) == says


@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_bounded_and_what_is_not_deep_is_not_refused(begin: bytes, end: bytes) -> None:
    def nested(levels: int) -> bytes:
        return b'{"a": ' + begin * (levels - 1) + b"1" + end * (levels - 1) + b"}"

    for levels in (MAX_DEPTH + 1, 100_000):
        assert f"deeper than {MAX_DEPTH} levels at line 1, column " in refusal(nested(levels))
    parse_object(nested(MAX_DEPTH), "")
    quoted = b'"\\\\\\"", "\\\\", "[[", ' * MAX_DEPTH
    assert "deeper than" in refusal(b'{"a": [' + quoted + b"[" * MAX_DEPTH)
    parse_object(b'{"a": [' + quoted + b"1]}", "")
    parse_object(b'{"a": [' + b"[],{}," * MAX_DEPTH + b'"[[[{{{\\"[[["]}', "")


def test_a_byte_order_mark_is_passed_over() -> None:
    assert parse_object(b'\xef\xbb\xbf{"a": 1}', "") == {"a": 1}


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), plain))
def test_all_other_json_is_read_as_python_reads_it(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value).encode(), "") == value


@given(st.binary() | st.text().map(str.encode))
def test_whatever_it_is_the_outcome_is_an_object_or_a_refusal(body: bytes) -> None:
    with suppress(BodyError):
        assert isinstance(parse_object(body, ""), dict)


class Body(BaseModel):
    prompt: str


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr(strict_route, "MAX_BYTES", 1 << 20)
    app = FastAPI()
    install_error_handlers(app)

    @app.post("/tokenize")
    async def tokenize(body: Body) -> str:
        return body.prompt

    return TestClient(app, raise_server_exceptions=False)


JSON = {"content-type": "application/json"}


def test_a_route_reads_what_is_json(client: TestClient) -> None:
    for kind in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"):
        sent = client.post("/tokenize", content='{"prompt": "é"}'.encode(), headers={"content-type": kind})
        assert (sent.status_code, sent.json()) == (200, "é")


def error_of(response: Any) -> tuple[int, str, str]:
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    return response.status_code, error["code"], error["message"]


def test_a_compressed_body_is_refused_whether_it_is_one_or_not(client: TestClient) -> None:
    for content in (gzip.compress(b'{"prompt": "a"}'), b'{"prompt": "a"}'):
        said = error_of(client.post("/tokenize", content=content, headers=JSON | {"content-encoding": "gzip"}))
        assert said == (415, "unsupported_encoding", "Content-Encoding: gzip is not supported. Send the body as it is.")


def test_a_body_that_is_too_large_is_refused(client: TestClient) -> None:
    status, code, _ = error_of(client.post("/tokenize", content=b" " * ((1 << 20) + 1), headers=JSON))
    assert (status, code) == (413, "body_too_large")
    status, _, message = error_of(client.post("/tokenize", content=b'{"prompt": 1}', headers=JSON))
    assert (status, message) == (400, "prompt: Input should be a valid string")


def test_a_refusal_keeps_its_example(client: TestClient) -> None:
    said = error_of(client.post("/tokenize", content=b"[]", headers=JSON))
    assert (
        said[2] == 'The body must be a JSON object, not a list, for example {"model": "MODEL", "prompt": "A sentence."}'
    )
    assert error_of(client.post("/tokenize"))[2].startswith("The request has no body.")
