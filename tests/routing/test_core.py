"""The one door: bookkeeping across hooks in any order, explanations, and bugs in a policy that cost no request."""

import json
import random
from typing import Any

import pytest

from app.errors import SettingsError
from app.routing.core import RoutingCore, explain
from app.routing.policy import CacheReport, Replica, Request
from app.routing.prompt import read_prompt
from app.routing.strategies import STRATEGIES
from tests.routing.conftest import Fleet

BODY = {"model": "m", "messages": [{"role": "user", "content": "Tell me about it. " * 200}]}


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
class TestEveryStrategy:
    def test_random_traffic_leaves_nothing_behind(self, strategy: str) -> None:
        """Replicas come and go, callers leave, hooks are lost and doubled: in the end nobody is busy."""
        rng = random.Random(11)
        fleet = Fleet(strategy, 4)
        running: list[tuple[str, str]] = []
        for step in range(1500):
            fleet.now += 0.1
            body = {"model": rng.choice("ab"), "prompt": rng.choice("xyz") * rng.randrange(1, 3000)}
            name, ranking = fleet.choose(body, rng.choice([None, "s", "t"]))
            assert ranking.best is not None
            assert len({one.replica for one in ranking.choices}) == len(ranking.choices)
            outcome = rng.random()
            if outcome < 0.1:
                fleet.core.settled(name, None)
            elif outcome < 0.9:
                where = rng.choice([one.replica for one in ranking.choices])
                fleet.core.settled(name, where)
                fleet.core.accepted(name, where)
                running.append((name, where))
            while len(running) > 12:
                request, replica = running.pop(rng.randrange(len(running)))
                report = rng.choice([None, CacheReport(100, l0=rng.randrange(100), computed=1)])
                fleet.core.completed(request, report)
                for _ in range(rng.choice([1, 1, 2])):
                    fleet.core.ended(request, replica)
            if step % 100 == 99:
                gone = rng.choice(fleet.names)
                if rng.random() < 0.5:
                    fleet.core.replica_died(gone)
                fleet.names.remove(gone)
                fleet.names.append(f"new{step}")
                fleet.update()
                fleet.core.check_integrity()
        for request, replica in running:
            fleet.core.ended(request, replica)
        fleet.now += 100
        fleet.choose(BODY)
        fleet.core.settled(f"q{fleet.made}", None)
        fleet.core.check_integrity()
        assert fleet.core.status()["in_flight"] == 0

    def test_no_replicas_is_an_empty_ranking(self, strategy: str) -> None:
        core = RoutingCore(strategy)
        assert core.choose(Request("a", read_prompt(BODY))).choices == ()

    def test_a_decision_can_be_explained(self, strategy: str) -> None:
        fleet = Fleet(strategy, 3)
        fleet.serve(BODY, "s")
        name, ranking = fleet.choose(BODY, "s")
        line = json.loads(explain(Request(name, read_prompt(BODY)), ranking))
        assert line["strategy"] == strategy
        assert line["choices"][0]["reason"]
        assert fleet.core.ranking(name) == ranking
        assert json.loads(str(fleet.core.explanation(name)))["request"] == name
        assert fleet.core.explanation("unknown") is None

    def test_a_request_that_cannot_be_read_is_ranked(self, strategy: str) -> None:
        assert Fleet(strategy, 3).choose(None)[1].best is not None


def test_a_bug_in_a_policy_is_counted_and_load_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet("prefix_aware", 3)

    def broken(*_: Any) -> None:
        raise KeyError("bug")

    for hook in ("rank", "on_routed", "on_completed", "on_replica_removed", "on_replica_added"):
        monkeypatch.setattr(fleet.core.policy, hook, broken)
    fleet.names.append("late")
    fleet.update()
    _, replica = fleet.send(BODY)
    fleet.core.completed("q1", CacheReport(10, computed=10))
    fleet.core.replica_died(replica)
    assert fleet.core.status()["failed:KeyError"] == 5


def test_reports_are_counted_by_the_id_the_client_sees() -> None:
    fleet = Fleet("prefix_aware", 1)
    for number in range(2):
        request = Request(f"i{number}", read_prompt(BODY), trace=f"t{number}")
        best = fleet.core.choose(request).best
        assert best is not None
        fleet.core.settled(request.id, best.replica)
        fleet.core.ended(request.id, best.replica)
    fleet.core.completed("t1", CacheReport(900, l0=800, computed=100))
    status = fleet.core.status()
    assert status["hit_tokens_reported"] == 800
    assert 700 <= status["hit_tokens_expected"] <= 900
    assert fleet.core.ranking("t1") is not None
    assert fleet.core.ranking("unknown") is None


def test_what_is_remembered_per_request_is_bounded() -> None:
    fleet = Fleet("round_robin", 1)
    for number in range(300):
        fleet.serve({"prompt": f"{number}" * 500_000})
    fleet.core.check_integrity()
    assert fleet.core.ranking("q1") is None
    assert fleet.core.ranking("q300") is not None


def test_a_degraded_judgement_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet("kv_aware", 2)
    for _ in range(3):
        fleet.serve(BODY)
    assert caplog.text.count("no token ids for this request") == 1


def test_decisions_are_logged_on_request(caplog: pytest.LogCaptureFixture) -> None:
    core = RoutingCore("prefix_aware", log_decisions=True)
    core.update_replicas([Replica("a")])
    with caplog.at_level("INFO", "tierserve.routing"):
        core.choose(Request("q", read_prompt(BODY)))
    assert json.loads(caplog.messages[-1])["choices"][0]["replica"] == "a"


def test_a_loaded_adapter_is_preferred_until_its_replicas_are_much_busier() -> None:
    fleet = Fleet("prefix_aware", 4)
    sent = []
    for number in range(6):
        best = fleet.core.choose(Request(f"a{number}", read_prompt({"prompt": f"{number}" * 999})), ["r2"]).best
        assert best is not None
        fleet.core.settled(f"a{number}", best.replica)
        sent.append(best.replica)
    assert sent[:5] == ["r2"] * 5
    assert sent[5] != "r2"


@pytest.mark.parametrize(("strategy", "options"), [("nope", {}), ("round_robin", {"x": 1}), ("session", {"roster": 1})])
def test_wrong_settings_are_refused_with_the_choices(strategy: str, options: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=r"choose one of|it has"):
        RoutingCore(strategy, options)


def test_threads_may_call_at_once() -> None:
    import threading

    core = RoutingCore("prefix_aware")
    core.update_replicas([Replica("a"), Replica("b")])
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for number in range(300):
                request = Request(f"{thread}-{number}", read_prompt(BODY))
                best = core.choose(request).best
                assert best is not None
                core.settled(request.id, best.replica)
                core.completed(request.id, CacheReport(10, computed=10))
                core.ended(request.id, best.replica)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    core.check_integrity()
    assert core.status()["in_flight"] == 0
