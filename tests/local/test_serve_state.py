"""What is worth a line: each crash at the start once, each loss and its end once; nothing else."""

from dataclasses import replace
from pathlib import Path

from app.local.serve_state import Deployment, Losses, StartCrashes

UP = Deployment("engine:m", "HEALTHY", "", 2, 2)
DOWN = Deployment("engine:m", "UNHEALTHY", "A replica's health check failed.", 1, 2)
STARTING = Deployment("engine:m", "UPDATING", "", 0, 2)
CRASHED = replace(STARTING, message="A replica failed to start. Retrying 1 more time(s). Error:\nValueError: bad")
INGRESS = Deployment("ingress", "HEALTHY", "", 1, 1)


class Serve:
    def __init__(self) -> None:
        self.now: list[Deployment] = []

    def read(self) -> list[Deployment]:
        return self.now


def test_each_crash_is_told_once(tmp_path: Path) -> None:
    serve = Serve()
    crashes = StartCrashes(tmp_path, serve.read)
    told = []
    for now in ([], [STARTING, INGRESS], [CRASHED, INGRESS], [CRASHED, INGRESS], [STARTING]):
        serve.now = now
        told.append(crashes.new())
    assert told == [[], [], ["a replica of m crashed: bad"], [], []]
    serve.now = [replace(CRASHED, message=CRASHED.message.replace("1 more", "0 more"))]
    assert crashes.new() == ["a replica of m crashed, as the one before"]
    serve.now = [replace(CRASHED, message="Error:\nValueError: worse")]
    assert crashes.new() == ["a replica of m crashed: worse"]


def test_what_may_help_is_told_with_it(tmp_path: Path) -> None:
    serve = Serve()
    serve.now = [replace(CRASHED, message="Error:\nOSError: set trust_remote_code")]
    (line,) = StartCrashes(tmp_path, serve.read).new()
    assert line.splitlines()[1].startswith("  -> set `engine.trust_remote_code: true`")


def test_a_start_that_serve_gave_up_has_a_reason(tmp_path: Path) -> None:
    serve = Serve()
    crashes = StartCrashes(tmp_path, serve.read)
    assert crashes.failed() is None
    serve.now = [INGRESS, CRASHED]
    assert crashes.failed() is None, "it is tried again"
    serve.now = [INGRESS, replace(CRASHED, status="DEPLOY_FAILED")]
    assert crashes.failed() == "m: bad"


def test_a_loss_and_its_end_are_a_line_each() -> None:
    now = 0.0
    losses = Losses(lambda: now)
    assert losses.changes([UP, INGRESS]) == []
    assert losses.changes([DOWN, INGRESS]) == ["m: a replica is lost (1 of 2 run), Serve starts another"]
    assert losses.changes([DOWN, INGRESS]) == []
    now = 54.4
    assert losses.changes([UP, INGRESS]) == ["m: all replicas (2) run again after 54 s"]
    assert losses.changes([UP, INGRESS]) == []


def test_a_second_loss_before_the_first_is_mended_is_told() -> None:
    losses = Losses(lambda: 0.0)
    losses.changes([DOWN])
    assert losses.changes([replace(DOWN, running=0)]) == ["m: a replica is lost (0 of 2 run), Serve starts another"]
    assert losses.changes([DOWN]) == [], "one of two is back: not all"


def test_autoscaling_loses_nothing() -> None:
    losses = Losses(lambda: 0.0)
    assert losses.changes([replace(UP, status="DOWNSCALING", running=1)]) == []
    assert losses.changes([replace(UP, running=1, replicas=1)]) == []


def test_a_controller_that_does_not_answer_is_no_news() -> None:
    losses = Losses(lambda: 0.0)
    losses.changes([DOWN])
    assert losses.changes([]) == []
    assert len(losses.changes([UP])) == 1
