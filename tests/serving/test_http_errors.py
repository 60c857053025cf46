"""Whatever goes wrong, a client reads OpenAI's error shape, and no name of ours, Ray's or Python's in it."""

import json
import pickle
from typing import Annotated, Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel, Field
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.testclient import TestClient
from vllm.exceptions import VLLMValidationError

from app.serving.examples import example_of, smallest_body
from app.serving.field_error import FieldError
from app.serving.http_errors import ModelNotFound, install_error_handlers


class Image(BaseModel):
    url: str


class MessageParam(BaseModel):
    role: str
    content: str | list[Image]


class Body(BaseModel):
    messages: list[MessageParam] = Field(min_length=1)
    max_tokens: int = Field(8, ge=1)
    prompt: str | list[int] = ""
    stop: str | Annotated[list[str], Field(max_length=4)] = ""


class RefusedError(Exception):
    """Shaped as Ray's OpenAIHTTPException is."""

    def __init__(self, status_code: int, message: str, internal_message: str = "secret") -> None:
        self.status_code, self.message, self.internal_message = status_code, message, internal_message


RAISED: list[Exception] = []


def served() -> FastAPI:
    app = FastAPI()
    install_error_handlers(app)

    @app.post("/chat")
    def chat(body: Body) -> Body:
        return body

    @app.get("/items/{number}")
    def item(number: int, limit: int = 1) -> int:
        return number * limit

    @app.get("/raise")
    def fail() -> None:
        raise RAISED.pop()

    @app.get("/stream")
    def stream() -> StreamingResponse:
        def pieces() -> Any:
            yield "data: 1\n\n"
            raise ValueError("too late to say so")

        return StreamingResponse(pieces())

    return app


@pytest.fixture
def client() -> TestClient:
    return TestClient(served(), raise_server_exceptions=False)


def error_of(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    message = body["error"]["message"]
    assert isinstance(message, str)
    assert message
    for name in ("Error(", "Traceback", 'File "', "ray", "vllm", "pydantic", "Param", "Body", "secret", "RequestID"):
        assert name not in message, f"{name} leaks: {message}"
    return dict(body["error"])


def raised(client: TestClient, error: Exception) -> Any:
    RAISED.append(error)
    return client.get("/raise")


def in_replica(cause: Exception) -> Exception:
    """An exception as it arrives from another process: it prints as that process's traceback."""
    trace = f'Traceback (most recent call last):\n  File "/opt/ray/secret.py", line 1\n{type(cause).__name__}: {cause}'
    arrived = RayTaskError("chat", trace, cause).as_instanceof_cause()
    assert isinstance(arrived, Exception)
    return arrived


@pytest.mark.parametrize("body", [b"{", b"", b"[1,", b'{"messages": nope}', b"\xff\xfe"])
def test_malformed_json(client: TestClient, body: bytes) -> None:
    error = error_of(client.post("/chat", content=body, headers={"content-type": "application/json"}), 400)
    assert error["type"] == "invalid_request_error"


def test_json_that_does_not_parse_says_so(client: TestClient) -> None:
    error = error_of(client.post("/chat", content=b"{", headers={"content-type": "application/json"}), 400)
    assert error["code"] == "invalid_json"
    assert error["message"].startswith("The body is not valid JSON: ")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": 1, "content": "a"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": "a"}], "max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "a"}], "max_tokens": "many"}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "a"}], "prompt": 1.5}, "prompt"),
        ({"messages": [{"role": "user", "content": "a"}], "stop": ["a", 1]}, "stop[1]"),
    ],
)
def test_a_wrong_field_is_named_by_its_path_alone(client: TestClient, body: Any, param: str) -> None:
    error = error_of(client.post("/chat", json=body), 400)
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


def test_of_a_list_where_a_text_would_do_it_is_said_what_is_wrong_with_the_list(client: TestClient) -> None:
    messages = [{"role": "user", "content": "a"}]
    error = error_of(client.post("/chat", json={"messages": messages, "stop": ["x"] * 5}), 400)
    assert error["message"] == "stop: List should have at most 4 items after validation, not 5"
    error = error_of(client.post("/chat", json={"messages": messages, "stop": 5}), 400)
    assert error["message"] == "stop: Input should be a valid string"
    assert error["code"] == "invalid_parameter"


def test_a_body_that_is_no_object(client: TestClient) -> None:
    error = error_of(client.post("/chat", json=[1]), 400)
    assert error["param"] is None
    assert error["message"].startswith("The body must be a JSON object, not a list, for example {")


def test_no_body_at_all_is_answered_with_one(client: TestClient) -> None:
    message = error_of(client.post("/chat"), 400)["message"]
    assert message.startswith("The request has no body. Send JSON, for example ")
    body = json.loads(message.partition("for example ")[2])
    assert client.post("/chat", json=body).status_code == 200, "the example is one that works"


def test_a_body_that_is_not_said_to_be_json(client: TestClient) -> None:
    sent = client.post("/chat", content=b'{"messages": []}', headers={"content-type": "text/plain"})
    assert "`Content-Type: application/json`" in error_of(sent, 415)["message"]


def test_a_missing_field_comes_with_an_example(client: TestClient) -> None:
    message = error_of(client.post("/chat", json={"model": "m"}), 400)["message"]
    assert message == 'messages: is required, for example "messages": [{"role": "user", "content": "Hello!"}]'
    assert error_of(client.post("/chat", json={"messages": [{"content": "a"}]}), 400)["message"] == (
        "messages[0].role: is required"
    )


def test_each_endpoint_has_its_own_example() -> None:
    assert '"prompt"' in smallest_body("/app/v1/completions")
    assert '"messages"' in smallest_body("/v1/chat/completions")
    assert '"tokens"' in smallest_body("/detokenize")
    assert example_of("/tokenize", "prompt") == '"prompt": "A sentence."'


def test_fields_outside_the_body(client: TestClient) -> None:
    assert error_of(client.get("/items/x"), 400)["param"] == "number"
    assert error_of(client.get("/items/1?limit=x"), 400)["param"] == "limit"


def test_no_such_path_and_no_such_method(client: TestClient) -> None:
    error = error_of(client.get("/nowhere"), 404)
    assert error["type"] == "not_found_error"
    assert error["message"].startswith("There is nothing at /nowhere. Try /v1/chat/completions")
    response = client.get("/chat")
    assert error_of(response, 405)["message"] == "/chat does not take GET: use POST."
    assert response.headers["allow"] == "POST"


def test_an_unknown_model(client: TestClient) -> None:
    error = error_of(raised(client, ModelNotFound("gpt", ["b", "a"])), 404)
    assert error["code"] == "model_not_found"
    assert error["message"] == "The model `gpt` does not exist. Available here: a, b."


def test_http_exceptions_keep_status_and_headers(client: TestClient) -> None:
    response = raised(client, HTTPException(429, "Slow down. (Request ID: 12-ab)", {"Retry-After": "7"}))
    error = error_of(response, 429)
    assert (error["message"], error["type"]) == ("Slow down.", "rate_limit_error")
    assert response.headers["retry-after"] == "7"


@pytest.mark.parametrize("wrap", [lambda error: error, in_replica], ids=["here", "in a replica"])
def test_refusals_by_the_engine_are_the_clients_to_read(client: TestClient, wrap: Any) -> None:
    error = error_of(raised(client, wrap(RefusedError(400, "The prompt is too long. (Request ID: ab)"))), 400)
    assert (error["message"], error["type"]) == ("The prompt is too long.", "invalid_request_error")


@pytest.mark.parametrize("wrap", [lambda error: error, in_replica], ids=["here", "in a replica"])
def test_a_field_that_vllm_names_in_its_message_is_the_param(client: TestClient, wrap: Any) -> None:
    said = "n must be positive, got (0). (parameter=n, value=(0)) (Request ID: ab)"
    error = error_of(raised(client, wrap(RefusedError(400, said))), 400)
    assert (error["message"], error["param"]) == ("n must be positive, got (0).", "n")


@pytest.mark.parametrize("wrap", [lambda error: error, in_replica], ids=["here", "in a replica"])
def test_a_field_that_a_check_of_ours_refuses_is_the_param(client: TestClient, wrap: Any) -> None:
    refused = pickle.loads(pickle.dumps(FieldError("tokens[1]", "7: is no token id.")))
    error = error_of(raised(client, wrap(refused)), 400)
    assert (error["message"], error["param"]) == ("tokens[1]: 7: is no token id.", "tokens[1]")


@pytest.mark.parametrize("wrap", [lambda error: error, in_replica], ids=["here", "in a replica"])
def test_values_that_vllm_refuses(client: TestClient, wrap: Any) -> None:
    refused = VLLMValidationError("max_tokens must be at least 1.", parameter="max_tokens", value=0)
    error = error_of(raised(client, wrap(refused)), 400)
    assert (error["message"], error["param"]) == ("max_tokens must be at least 1.", "max_tokens")


@pytest.mark.parametrize("status", [503, 429])
@pytest.mark.parametrize("wrap", [lambda error: error, in_replica], ids=["here", "in a replica"])
def test_a_full_queue(client: TestClient, wrap: Any, status: int) -> None:
    response = raised(client, wrap(BackPressureError(3, 3, status)))
    assert error_of(response, 503)["code"] == "overloaded"
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize("error", [DeploymentUnavailableError.__new__(DeploymentUnavailableError), ActorDiedError()])
def test_a_replica_that_is_gone(client: TestClient, error: Exception) -> None:
    assert error_of(raised(client, error), 503)["type"] == "server_error"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("internal secret"),
        KeyError("secret"),
        RefusedError(500, "secret of the engine"),
        in_replica(RuntimeError("secret")),
        in_replica(TypeError("secret")),
    ],
)
def test_anything_else_tells_nothing(client: TestClient, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    said = error_of(raised(client, error), 500)
    assert (said["type"], said["message"]) == ("server_error", "The server failed to answer this request.")
    assert "a request failed unexpectedly" in caplog.text, "who runs the server must find it in the log"


def test_a_stream_that_fails_after_it_began_is_cut_off() -> None:
    with pytest.raises(ValueError, match="too late"):
        TestClient(served()).get("/stream")
