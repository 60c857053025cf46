"""Who holds a port: a run of ours, an application that was deployed here, or somebody else."""

import os

import pytest

from app.local.record import RunRecord
from app.local.running import running_at
from tests.local.fake_proxy import answering

OURS = {"/-/routes": {"/": "tierserve"}, "/health": {"status": "ok"}}


def note(port: int) -> None:
    RunRecord(os.getpid(), "tierserve", "127.0.0.1:1", f"http://127.0.0.1:{port}", ("m",)).write()


def test_a_run_of_ours_is_named_with_its_process_and_how_to_stop_it() -> None:
    with answering(OURS) as port:
        note(port)
        found = running_at("127.0.0.1", port)
    assert found is not None
    assert found.told() == (
        f"http://127.0.0.1:{port} is held by tierserve (`tierserve serve`, process {os.getpid()}; it answers);"
        f" Ctrl-C or `kill {os.getpid()}` stops it"
    )


def test_a_run_that_does_not_answer_is_ours_still() -> None:
    with answering({}) as port:
        note(port)
        found = running_at("127.0.0.1", port)
    assert found is not None
    assert "it does not answer: it is starting or stopping" in found.told()


def test_one_that_was_deployed_to_a_ray_is_found_by_what_it_answers() -> None:
    with answering({"/-/routes": {"/": "other", "/llm": "ours"}, "/llm/health": {"status": "ok"}}) as port:
        found = running_at("0.0.0.0", port)
    assert found is not None
    assert (found.names, found.pid, found.healthy) == (("ours",), None, True)
    assert "`serve shutdown` stops it" in found.told()


@pytest.mark.parametrize(
    "pages",
    [
        {},
        {"/health": {"status": "ok"}},
        {"/-/routes": {"/": "theirs"}, "/health": {"status": "fine"}},
        {"/-/routes": ["/"], "/health": {"status": "ok"}},
        {"/-/routes": {"/": 1}, "/health": {"status": "ok"}},
    ],
)
def test_anybody_else_is_not_ours(pages: dict[str, object]) -> None:
    with answering(pages) as port:
        assert running_at("127.0.0.1", port) is None


def test_nobody_is_nobody(unused_port: int) -> None:
    assert running_at("127.0.0.1", unused_port) is None
