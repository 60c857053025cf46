"""One HTTP exchange with an API server: the seam at which tests put scripted answers."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

import urllib3


class ConnectionLostError(Exception):
    """No answer: refused, reset, timed out, no route. Whether the request was carried out is not known."""


@dataclass(frozen=True)
class Call:
    """One request to the server; `path` begins with a slash."""

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: str | None = None
    content_type: str = "application/json"


@dataclass(frozen=True)
class Answer:
    status: int
    text: str

    @property
    def body(self) -> dict[str, Any]:
        """The parsed JSON object, or an empty one (an answer of a proxy, an empty body)."""
        try:
            parsed = json.loads(self.text)
        except ValueError:
            return {}
        return parsed if isinstance(parsed, dict) else {}

    @property
    def message(self) -> str:
        return str(self.body.get("message") or self.text[:300] or f"HTTP {self.status}")


class Transport(Protocol):
    def send(self, call: Call) -> Answer:
        """One attempt. Raises ConnectionLostError when no answer came, and only then."""


class HttpTransport:
    """Over a urllib3 pool, with headers that are asked for anew for each request (tokens expire)."""

    def __init__(
        self,
        host: str,
        pool: urllib3.PoolManager,
        headers: Callable[[], Mapping[str, str]] = dict,
        timeout_s: float = 30,
    ) -> None:
        self._host, self._pool, self._headers, self._timeout_s = host.rstrip("/"), pool, headers, timeout_s

    def send(self, call: Call) -> Answer:
        url = f"{self._host}{call.path}" + (f"?{urlencode(call.query)}" if call.query else "")
        headers = {"Accept": "application/json", **self._headers()}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        timeout = urllib3.Timeout(connect=10, read=self._timeout_s)
        data = call.body.encode() if call.body is not None else None
        try:
            answer = self._pool.request(call.method, url, body=data, headers=headers, timeout=timeout, retries=False)
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionLostError(f"{self._host}: {error}") from error
        return Answer(answer.status, answer.data.decode(errors="replace"))
