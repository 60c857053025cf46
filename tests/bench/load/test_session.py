import pytest

from app.bench.load.endpoint import Endpoint
from app.bench.load.plan import PlannedRequest
from app.bench.load.session import Session
from app.errors import ServingError
from tests.bench.load.sse import Script, SseServer

REQUEST = PlannedRequest(({"role": "user", "content": "a"},), 9, 3, phase="p")
USAGE = {"prompt_tokens": 9, "completion_tokens": 3}


def test_asks_one_after_the_other_and_keeps_every_record(scripted: SseServer) -> None:
    scripted.answer = lambda body: Script(usage=USAGE)
    with Session(Endpoint(scripted.url, "m")) as session:
        session.ask(REQUEST)
        session.ask(REQUEST, "other")
    assert [(record.index, record.phase) for record in session.records] == [(0, "p"), (1, "other")]
    assert session.records[1].started_s >= session.records[0].started_s + session.records[0].e2e_s
    assert scripted.open_most == 1


def test_a_failure_is_raised_and_kept(scripted: SseServer) -> None:
    scripted.answer = lambda body: Script(status=503)
    with Session(Endpoint(scripted.url, "m")) as session, pytest.raises(ServingError, match="status 503"):
        session.ask(REQUEST)
    assert [record.status for record in session.records] == [503]


def test_another_replica_than_the_one_named_is_an_error(scripted: SseServer) -> None:
    scripted.answer = lambda body: Script(usage=USAGE, headers={"x-tierserve-replica": "other"})
    with Session(Endpoint(scripted.url, "m")) as session:
        assert session.ask(REQUEST).replica == "other"
        with pytest.raises(ServingError, match=r"other answered instead of mine.*debug: true"):
            session.ask(REQUEST.on("mine"))
