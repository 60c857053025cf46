"""`tierserve bench routing --live`: routing strategies on real engines, ours beside Ray's own.

One application of three replicas on two Ray nodes of this machine stays up; between phases only its router changes
(switching_router.py), so that every phase begins with a router that knows nothing, empty L0 and L1, and prompts that no
phase before had. The pool is the run's own: in the user's, the words of an earlier run would still be. Strategies take
turns in each round, in an order that changes, so that a slow minute of the machine does not hit the same one every
time.
"""

import json
import os
import random
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from app import demo_model
from app.bench.fairness import largest_share, unfair_time
from app.bench.load import Bars, Conversation, PlannedRequest, Prompts, RequestRecord, load_tokenizer
from app.bench.load.endpoint import Endpoint, find_endpoint
from app.bench.load.plan import Message, count
from app.bench.load.run import run_closed, run_open
from app.bench.load.summary import Spread
from app.bench.target import Tiers, joined, own_pool
from app.bench.two_nodes import spread_over_two, two_nodes
from app.commands.serve import DEFAULT_FILE
from app.routing import strategies
from app.serving.llm_config import deployment_name

OURS = tuple(strategies.STRATEGIES)
RAYS: Mapping[str, str] = {
    "ray_power_of_two": "ray.serve._private.request_router:PowerOfTwoChoicesRequestRouter",
    "ray_prefix_affinity": "ray.serve.llm.request_router:PrefixCacheAffinityRouter",
}
STRATEGIES = (*OURS, *RAYS)
TRAFFIC = ("dialogues", "hot")
_REPLICAS = 3


@dataclass(frozen=True, slots=True)
class Dialogues:
    """What is sent: conversations that begin as a Poisson process and overlap, each under one of the system prompts."""

    conversations: int = 12
    turns: int = 5
    systems: int = 2
    system_tokens: int = 512
    user_tokens: int = 64
    answer_tokens: int = 24
    output_tokens: int = 12
    rate: float = 0.25
    pause_s: tuple[float, float] = (0.5, 2.0)


@dataclass(frozen=True, slots=True)
class Hot:
    """One prefix for most of the traffic, so many requests at a time."""

    requests: int = 120
    share: float = 0.8
    prefix_tokens: int = 384
    own_tokens: int = 32
    output_tokens: int = 8
    concurrency: int = 6


@dataclass
class Phase:
    """One strategy's turn in one round."""

    strategy: str
    round: int
    dialogues: list[RequestRecord] = field(default_factory=list)
    hot: list[RequestRecord] = field(default_factory=list)


def run_live(
    rounds: int = 3,
    bars: Bars | None = None,
    names: Sequence[str] = STRATEGIES,
    traffic: Sequence[str] = TRAFFIC,
) -> dict[str, dict[str, Any]]:
    """{strategy: {ttft_mean_s, ttft_p90_s, ttft_median_s, hit_tokens, failed, rounds, hot_max_share, hot_unfair_time}}.

    Times and tokens are of the dialogues, over all rounds; `rounds` has the mean and the 90th percentile of each, since
    one minute of a shared machine is not the next. The last two are of the requests under a hot prefix, medians of the
    rounds: the busiest replica's over its fair share, and for how much of the time one had too many while another had
    none (app/bench/fairness.py). What was not sent is left out.

    Raises:
        ServingError: the application did not come up.
    """
    say = bars.say if bars is not None else lambda _: None
    say("Starting two Ray nodes with three replicas (about two minutes) ...")
    tokenizer = load_tokenizer(demo_model.demo_model())
    phases: list[Phase] = []
    with _application() as lab:
        for number in range(rounds):
            order = list(names)
            random.Random(number).shuffle(order)
            for strategy in order:
                say(f"Round {number + 1} of {rounds}: {strategy}")
                seed = number * len(STRATEGIES) + STRATEGIES.index(strategy)
                phase = Phase(strategy, number)
                _measure(lab, phase, traffic, Prompts(tokenizer, seed), bars)
                phases.append(phase)
                say(json.dumps({name: value for name, value in _figures([phase]).items() if name != "rounds"}))
    return {strategy: _figures([one for one in phases if one.strategy == strategy]) for strategy in names}


def _measure(lab: "Lab", phase: Phase, traffic: Sequence[str], prompts: Prompts, bars: Bars | None) -> None:
    """The same plan for each strategy of a round in all but its words."""
    if "dialogues" in traffic:
        lab.switch(phase.strategy)
        plan = dialogues(prompts, Dialogues(), seed=phase.round)
        tick = bars.track(f"{phase.strategy}, dialogues", count(plan)) if bars is not None else None
        phase.dialogues = run_open(lab.endpoint, plan, Dialogues().rate, phase.round, tick)
        check_fresh(phase.dialogues)
    if "hot" in traffic:
        lab.switch(phase.strategy)
        plan = hot(prompts, Hot(), seed=phase.round)
        tick = bars.track(f"{phase.strategy}, hot prefix", count(plan)) if bars is not None else None
        phase.hot = run_closed(lab.endpoint, plan, Hot().concurrency, tick)
        check_fresh(phase.hot)


def check_fresh(records: Sequence[RequestRecord]) -> None:
    """Nothing can be cached of a phase's first request. If something is, what was measured is not what it is called."""
    first = min(records, key=lambda record: record.started_s)
    assert not first.cached_tokens, f"the caches were not empty: {first.cached_tokens} tokens of the first prompt"


def dialogues(prompts: Prompts, what: Dialogues, seed: int) -> list[Conversation]:
    rng = random.Random(seed)
    systems = [
        {"role": "system", "content": prompts.text(what.system_tokens, f"system {n}")} for n in range(what.systems)
    ]
    return [
        _dialogue(prompts, what, systems[number % len(systems)], f"dialogue {number}", rng)
        for number in range(what.conversations)
    ]


def _dialogue(prompts: Prompts, what: Dialogues, system: Message, name: str, rng: random.Random) -> Conversation:
    messages: list[Message] = [system]
    requests = []
    for turn in range(what.turns):
        messages.append({"role": "user", "content": prompts.text(what.user_tokens, f"{name}/{turn}")})
        requests.append(
            PlannedRequest(
                tuple(messages),
                prompts.prompt_length(messages),
                what.output_tokens,
                conversation=name,
                turn=turn,
                pause_s=rng.uniform(*what.pause_s) if turn else 0.0,
                headers={"x-session-id": name},
            )
        )
        messages.append({"role": "assistant", "content": prompts.text(what.answer_tokens, f"{name}/answer {turn}")})
    return Conversation(name, tuple(requests))


def hot(prompts: Prompts, what: Hot, seed: int) -> list[Conversation]:
    rng = random.Random(seed)
    shared = prompts.text(what.prefix_tokens, "hot")
    plan = []
    for number in range(what.requests):
        name = f"request {number}"
        own = prompts.text(what.own_tokens, name)
        before = shared if rng.random() < what.share else prompts.text(what.prefix_tokens, f"{name}/cold")
        messages = ({"role": "user", "content": before + own},)
        plan.append(
            Conversation(
                name,
                (
                    PlannedRequest(
                        messages,
                        prompts.prompt_length(messages),
                        what.output_tokens,
                        conversation=name,
                        headers={"x-session-id": name},
                    ),
                ),
            )
        )
    return plan


def _figures(phases: Sequence[Phase]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if any(phase.dialogues for phase in phases):
        good = [record for phase in phases for record in phase.dialogues if record.ok and record.ttft_s is not None]
        figures = {
            **_times(good),
            "hit_tokens": sum(record.cached_tokens or 0 for record in good),
            "l0_tokens": sum(record.l0_tokens or 0 for record in good),
            "prompt_tokens": sum(record.prompt_tokens for record in good),
            "requests": len(good),
            "rounds": [_times(phase.dialogues) for phase in phases],
        }
    if any(phase.hot for phase in phases):
        figures["hot_max_share"] = _median(largest_share(phase.hot, _REPLICAS) for phase in phases)
        figures["hot_unfair_time"] = _median(unfair_time(phase.hot, _REPLICAS) for phase in phases)
    figures["failed"] = sum(not record.ok for phase in phases for record in (*phase.dialogues, *phase.hot))
    return figures


def _times(records: Sequence[RequestRecord]) -> dict[str, float]:
    """Of those that were answered; nothing, if none was."""
    ttft = Spread.of(record.ttft_s for record in records if record.ok and record.ttft_s is not None)
    if ttft is None:
        return {}
    times = {"ttft_mean_s": ttft.mean, "ttft_median_s": ttft.median, "ttft_p90_s": ttft.p90}
    return {name: round(value, 4) for name, value in times.items()}


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 3)


@dataclass
class Lab:
    """The running application, and the means to change its router."""

    control: Path
    endpoint: Endpoint
    tiers: Tiers
    phases: int = 0

    def switch(self, strategy: str) -> None:
        """Empty L0 and L1, and give the application this strategy's router, which knows nothing yet."""
        # Requests that are no prompts are routed too: Ray's prefix router raises on one, and it is never answered.
        self._control("round_robin")
        self.tiers.clear_all()
        self._control(strategy)

    def _control(self, strategy: str) -> None:
        self.phases += 1
        write_control(self.control, control(strategy, self.endpoint.model, self.tiers.chunk_tokens, self.phases))


def control(strategy: str, model: str, chunk_tokens: int, phase: int) -> dict[str, Any]:
    """What SwitchingRouter reads."""
    if strategy in RAYS:
        return {"router": RAYS[strategy], "kwargs": {}, "phase": phase}
    options = {"chunk_tokens": chunk_tokens} if strategy == "kv_aware" else {}
    kwargs = {"strategy": strategy, "options": options, "allow_pinning": True, "model": model}
    return {"router": "app.serving.router:TierRequestRouter", "kwargs": kwargs, "phase": phase}


def write_control(file: Path, content: Mapping[str, Any]) -> None:
    """At once: the router must not read half of it."""
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(content))
    fresh.replace(file)


@contextmanager
def _application() -> Iterator[Lab]:
    with own_pool() as pool, tempfile.TemporaryDirectory(prefix=f"tierserve-{os.getpid()}-") as directory:
        # kv_aware, so that engines publish their events and the ingress has the tokenizer, in every phase.
        changes = {
            "replicas": _REPLICAS,
            "num_cpus": 0.4,
            "routing": {"strategy": "kv_aware", "debug": True},
            "l2": {"backend": "curvine", "path": str(pool), "capacity_gib": 8},
        }
        document = spread_over_two(yaml.safe_load(DEFAULT_FILE.read_text()), changes)
        (application,) = document["applications"]
        (model,) = application["args"]["models"]
        file = Path(directory) / "phase.json"
        write_control(file, control("prefix_aware", model["id"], model["l1"]["chunk_tokens"], 0))
        router = {
            "request_router_class": "app.bench.switching_router:SwitchingRouter",
            "request_router_kwargs": {"control": str(file)},
        }
        application["deployments"] = [{"name": deployment_name(model["id"]), "request_router_config": router}]
        with two_nodes(document) as cluster, joined(application["name"], cluster.address) as tiers:
            yield Lab(file, find_endpoint(cluster.url), tiers)
