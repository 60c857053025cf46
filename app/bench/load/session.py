"""Requests one by one, on one connection: for measurements whose next step depends on what the last one left behind."""

import asyncio
from dataclasses import replace
from types import TracebackType

import httpx

from app.bench.load.endpoint import Endpoint
from app.bench.load.plan import PlannedRequest
from app.bench.load.record import RequestRecord
from app.bench.load.run import OnRecord, connections, since_now
from app.bench.load.send import send
from app.cache_report import REPLICA_HEADER
from app.errors import ServingError


class Session:
    """`with Session(endpoint) as session: session.ask(request)`. Keeps every record, in the order of asking."""

    def __init__(self, endpoint: Endpoint, on_record: OnRecord | None = None) -> None:
        self._endpoint, self._on_record = endpoint, on_record
        self._runner = asyncio.Runner()
        self._http: httpx.AsyncClient | None = None
        self._clock = since_now()
        self.records: list[RequestRecord] = []

    def __enter__(self) -> "Session":
        self._http = connections()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._http is not None
        self._runner.run(self._http.aclose())
        self._runner.close()

    def ask(self, request: PlannedRequest, phase: str | None = None) -> RequestRecord:
        """Send `request` (under another phase's name, if given) and wait for the whole answer.

        Raises:
            ServingError: it failed, or another replica answered. A series of steps has no meaning without one of them.
        """
        assert self._http is not None, "enter the session first"
        named = request if phase is None else replace(request, phase=phase)
        record = self._runner.run(send(self._http, self._endpoint, named, self._clock, index=len(self.records)))
        self.records.append(record)
        if self._on_record is not None:
            self._on_record(record)
        if not record.ok:
            raise ServingError(
                f"{self._endpoint.url} did not answer a request of {request.prompt_tokens} tokens: {record.error}"
            )
        wanted = named.headers.get(REPLICA_HEADER, record.replica)
        if record.replica != wanted:
            raise ServingError(f"replica {record.replica} answered instead of {wanted}: set `routing: {{debug: true}}`")
        return record
