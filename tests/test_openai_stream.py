"""Scripted servers over real sockets: what is timed, what is read, and how each kind of failure is told."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from app.cache_report import CacheReport
from app.errors import ServingError
from app.openai_stream import TimedAnswer, timed_chat


class Scripted(http.server.ThreadingHTTPServer):
    """Answers every POST with one script and keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: list[bytes] = []
        self.status = 200
        self.cut = False
        self.asked: list[tuple[str, dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Scripted
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        self.send_response(self.server.status)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in self.server.script:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        if self.server.cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[Scripted]:
    made = Scripted()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def ask(server: Scripted) -> Iterator[Callable[..., TimedAnswer]]:
    """Asks the server; its clock ticks one second at each look."""
    with httpx.Client(timeout=10) as client:
        ticks = iter(range(100))

        def asked(**options: Any) -> TimedAnswer:
            return timed_chat(client, server.url, {"model": "m"}, clock=lambda: float(next(ticks)), **options)

        yield asked


def event(message: Any) -> bytes:
    return b"data: " + json.dumps(message).encode() + b"\n\n"


def text(content: str | None) -> bytes:
    return event({"choices": [{"delta": {"content": content}}]})


USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
DETAILS = {"cached_tokens": 6, "l0_tokens": 4, "l1_tokens": 2, "l2_tokens": 0, "computed_tokens": 4, "replica": "r"}


def test_a_whole_stream(server: Scripted, ask: Callable[..., TimedAnswer]) -> None:
    usage = {**USAGE, "prompt_tokens_details": DETAILS}
    server.script = [text(""), text("Hel"), text("lo"), event({"choices": [], "usage": usage}), b"data: [DONE]\n\n"]
    answer = ask(headers={"x-tierserve-replica": "r"})
    assert answer == TimedAnswer(1.0, 2.0, "Hello", 10, 2, CacheReport(4, 2, 4, 2, 0, "r"))
    path, headers, body = server.asked[0]
    assert path == "/v1/chat/completions"
    assert headers["x-tierserve-replica"] == "r"
    assert body == {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


def test_pieces_that_arrive_split_and_joined_anyhow(server: Scripted, ask: Callable[..., TimedAnswer]) -> None:
    whole = text("Grüße, ") + b": a comment\n\n" + text("Welt")
    server.script = [whole[i : i + 7] for i in range(0, len(whole), 7)]
    assert ask().text == "Grüße, Welt"


@pytest.mark.parametrize(
    "script",
    [
        [b'data:{"choices":[{"delta":{"content":"hi"}}]}\n\n'],  # the blank is optional
        [event({"choices": [{"delta": {"role": "assistant"}}]}), text(None), text("hi")],
        [event({"choices": None}), event({"choices": [{"delta": None}], "error": None}), text("hi")],
        [event({"id": 1}), text("hi"), event({"usage": None})],
        [b"event: message\nid: 3\n" + text("hi")],
    ],
)
def test_dialects_of_other_servers(server: Scripted, ask: Callable[..., TimedAnswer], script: list[bytes]) -> None:
    server.script = script
    answer = ask()
    assert (answer.text, answer.report) == ("hi", None)


def test_an_answer_without_text_ends_when_it_begins(server: Scripted, ask: Callable[..., TimedAnswer]) -> None:
    server.script = [event({"choices": [], "usage": USAGE})]
    answer = ask()
    assert (answer.ttft_s, answer.e2e_s, answer.text) == (1.0, 1.0, "")


def test_a_refusal_is_told_with_its_status_and_words(server: Scripted, ask: Callable[..., TimedAnswer]) -> None:
    server.status, server.script = 404, [b'{"error": {"message": "no such model"}}']
    with pytest.raises(ServingError, match=r"answered 404: .*no such model"):
        ask()


@pytest.mark.parametrize("error", [{"message": "it broke"}, "it broke", {"code": 5, "reason": "it broke"}])
def test_an_error_within_the_stream(server: Scripted, ask: Callable[..., TimedAnswer], error: Any) -> None:
    server.script = [text("Hel"), event({"error": error})]
    with pytest.raises(ServingError, match="it broke"):
        ask()


def test_a_stream_that_is_no_json(server: Scripted, ask: Callable[..., TimedAnswer]) -> None:
    server.script = [b"data: <html>\n\n"]
    with pytest.raises(ServingError, match="streamed what is not JSON: <html>"):
        ask()


def test_a_stream_that_is_cut_off_is_no_answer(server: Scripted, ask: Callable[..., TimedAnswer]) -> None:
    server.script, server.cut = [text("Hel")], True
    with pytest.raises(ServingError, match="cannot be reached"):
        ask()


def test_nobody_there(unused_port: int) -> None:
    url = f"http://127.0.0.1:{unused_port}"
    with httpx.Client() as client, pytest.raises(ServingError, match=f"{url} cannot be reached"):
        timed_chat(client, url, {})
