import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from app.bench.load.endpoint import Endpoint, find_endpoint
from app.errors import ServingError


class _Models(http.server.BaseHTTPRequestHandler):
    names: tuple[str, ...] = ("m",)

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": name} for name in self.names]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    handler = type("Handler", (_Models,), {"names": getattr(request, "param", ("m",))})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_finds_the_one_model_with_and_without_v1(url: str) -> None:
    for given in (url, f"{url}/", f"{url}/v1", f"{url}/v1/"):
        endpoint = find_endpoint(given)
        assert (endpoint.model, endpoint.base) == ("m", url)


@pytest.mark.parametrize("url", [("a", "b")], indirect=True)
def test_of_several_models_one_must_be_named(url: str) -> None:
    with pytest.raises(ServingError, match=r"2 models \(a, b\)"):
        find_endpoint(url)
    assert find_endpoint(url, model="b").model == "b"


def test_nobody_there_is_said(unused_port: int) -> None:
    with pytest.raises(ServingError, match="does not list its models"):
        find_endpoint(f"http://127.0.0.1:{unused_port}")


def test_a_key_is_sent_as_a_bearer() -> None:
    assert Endpoint("http://x", "m", "secret").headers == {"Authorization": "Bearer secret"}
    assert Endpoint("http://x", "m").headers == {}
