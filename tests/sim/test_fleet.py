"""Whole runs: every policy answers everything, the same way each time, with books that balance."""

import random
from dataclasses import replace

import pytest

from app.routing.core import RoutingCore
from app.sim.fleet import Fleet
from app.sim.mixes import Chat, mixed
from app.sim.policies import ALL, core_maker
from app.sim.run import SCENARIOS, Experiment, prepare
from app.sim.spec import FleetSpec
from app.sim.workload import Workload, totals

CHAT = Chat(system_tokens=1024, question_tokens=192, pause_s=5.0)


def workload(requests: int = 150) -> Workload:
    return mixed("chat", CHAT, requests)


def experiment(spec: FleetSpec, scenario: str = "none") -> Experiment:
    return prepare(spec, workload(), 0.5, scenario)


def finished(one: Experiment, policy: str) -> Fleet:
    fleet = Fleet(one.spec, one.workload, core_maker(policy), 2048)
    fleet.run()
    fleet.check_integrity()
    return fleet


@pytest.mark.parametrize("policy", ALL)
def test_every_policy_answers_everything_and_balances_its_books(spec: FleetSpec, policy: str) -> None:
    fleet = finished(experiment(spec), policy)
    outcome, jobs = fleet.outcome, list(workload().jobs())
    assert len(outcome.ttft) == len(jobs)
    assert outcome.prompt_tokens == sum(job.tokens for job in jobs)
    assert outcome.output_tokens == sum(job.output for job in jobs)
    assert min(outcome.ttft) > 0
    parts = outcome.queued_s + outcome.loading_s + outcome.passed_s + outcome.prefilling_s
    assert parts == pytest.approx(sum(outcome.ttft))
    assert fleet.core.status()["in_flight"] == 0
    assert not any(name.startswith("failed:") for name in fleet.core.status())
    endless = totals(workload(), lambda prompt, output: 1.0).endless_hit_ratio
    assert 0 < outcome.hit_ratio <= endless
    assert outcome.imbalance >= 1


@pytest.mark.parametrize("policy", ["kv_aware", "llm_d_precise"])
def test_a_run_follows_from_its_seed(spec: FleetSpec, policy: str) -> None:
    one = experiment(spec)
    assert one.run(policy) == one.run(policy)


def test_another_seed_is_another_run_where_chance_decides(spec: FleetSpec) -> None:
    other = experiment(replace(spec, seed=2))
    assert experiment(spec).run("ray_pow2").ttft != other.run("ray_pow2").ttft


@pytest.mark.parametrize("policy", ["kv_aware", "prefix_aware", "dynamo", "aibrix_prefix_cache"])
@pytest.mark.parametrize("scenario", SCENARIOS[1:])
def test_whatever_happens_everything_is_answered(spec: FleetSpec, scenario: str, policy: str) -> None:
    one = experiment(spec, scenario)
    fleet = finished(one, policy)
    assert len(fleet.outcome.ttft) >= 150
    assert fleet.core.status()["in_flight"] == 0


def test_requests_of_a_dead_node_are_sent_again_and_their_time_goes_on(spec: FleetSpec) -> None:
    busy = prepare(spec, workload(400), 1.5, "node-death")
    outcome = busy.run("kv_aware")
    assert outcome.retries > 0
    assert len(outcome.ttft) >= 400


def test_the_index_that_kv_aware_follows_says_what_engines_hold(spec: FleetSpec) -> None:
    cores: list[RoutingCore] = []

    def make(clock: object, rng: random.Random, chunk: int) -> RoutingCore:
        cores.append(core_maker("kv_aware")(clock, rng, chunk))  # type: ignore[arg-type]
        return cores[-1]

    one = experiment(spec)
    fleet = Fleet(one.spec, one.workload, make)
    fleet.run()
    status = cores[0].status()
    # Expected when chosen and reported when served differ by what was evicted, stored or computed in between.
    assert status["hit_tokens_reported"] > 0
    assert status["hit_tokens_expected"] == pytest.approx(status["hit_tokens_reported"], rel=0.1)
    assert status["l0_orphans"] == 0
    assert status["l0_losses"] == 0


def test_a_workload_that_no_engine_has_room_for_is_refused(spec: FleetSpec) -> None:
    with pytest.raises(Exception, match="do not fit"):
        prepare(spec, mixed("m", Chat(system_tokens=32_768), 10), 0.5)
    with pytest.raises(Exception, match="no requests"):
        prepare(spec, Workload("m", 64, lambda: iter(())), 0.5)
