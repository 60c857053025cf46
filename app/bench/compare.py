"""`tierserve bench compare`: the same load against tierserve and what one would use without it.

Systems: tierserve (serve_configs/local.yaml on one node); Ray Serve LLM as shipped, power of two choices; Ray Serve LLM
with its own PrefixCacheAffinityRouter; one `vllm serve` for each replica, of which the client takes the next for each
request (round robin with no front that costs time). Each has the same model, number of replicas, engine arguments, KV
memory and threads. Two do not fit into a small machine's memory, so one after the other is started, warmed up, measured
and stopped, and all of that again for each round: every second round in the opposite order, each round with new texts.

The load: chats of several turns behind a few shared system prompts, several at a time, so that all of these systems
have something to reuse; and, apart from it, requests that share nothing, where keeping KV can only cost time. All that
is shared fits into each engine's own KV memory. "Computed" are the prompt tokens that had to be prefilled. Ratios are
above 1 where tierserve is better and below 1 where it is worse; where rounds differ more than systems do, they say
nothing.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from app.bench import compare_load
from app.bench.command import command_line, hand_out
from app.bench.compare_load import ALONE, CHATS, QUICK, Mix, check_counts, warm_up
from app.bench.compare_result import charts_of, figures_table, in_a_row, part_of, ratios_table
from app.bench.load import (
    Bars,
    BenchResult,
    Conversation,
    Endpoint,
    Environment,
    Prompts,
    RequestRecord,
    load_tokenizer,
    progress_bars,
    run_closed,
    summarize,
)
from app.bench.load.plan import count
from app.bench.load.prompts import Tokenizer
from app.bench.systems import OURS, SYSTEMS, Engines, System, local_engines
from app.local.machine import Machine, check_machine
from app.local.signals import interrupt_on_sigterm

_WARM_UPS = 6
_PARTS = {CHATS: "Chats behind shared system prompts", ALONE: "Nothing shared"}


@dataclass(frozen=True)
class Plan:
    """One round: what is sent, and how many conversations at a time."""

    warm_up: tuple[Conversation, ...]
    parts: dict[str, tuple[tuple[Conversation, ...], int]]

    @classmethod
    def of_round(cls, prompts: Prompts, mix: Mix, seed: int) -> "Plan":
        return cls(
            warm_up(prompts, _WARM_UPS),
            {
                CHATS: (compare_load.chats(prompts, mix, seed), mix.at_a_time),
                ALONE: (compare_load.alone(prompts, mix), mix.alone_at_a_time),
            },
        )


@dataclass
class Comparison:
    """Everything measured so far: part -> system -> records, a list for each round."""

    systems: Sequence[System]
    rounds: dict[str, dict[str, list[list[RequestRecord]]]] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rounds = {part: {system.name: [] for system in self.systems} for part in _PARTS}

    def measure(self, system: System, endpoints: tuple[Endpoint, ...], plan: Plan, progress: Bars, title: str) -> None:
        """Raises ServingError if a system counts tokens otherwise than planned."""
        run_closed(endpoints, plan.warm_up, len(plan.warm_up) // 2)
        for part, (conversations, at_a_time) in plan.parts.items():
            tick = progress.track(f"{title}: {part}", count(conversations))
            records = run_closed(endpoints, conversations, at_a_time, tick)
            check_counts(records, conversations, system.name)
            self.rounds[part][system.name].append(records)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.took_s[what] = round(self.took_s.get(what, 0.0) + time.perf_counter() - started, 1)


@dataclass(frozen=True)
class Options:
    mix: Mix = Mix()  # noqa: RUF009 - frozen itself
    rounds: int = 2
    seed: int = 1


def run(
    engines: Engines, systems: Sequence[System], tokenizer: Tokenizer, options: Options, progress: Bars
) -> Comparison:
    """Each system once a round, the order turned round for each next one."""
    found = Comparison(systems)
    for number in range(options.rounds):
        seed = options.seed + number
        plan = Plan.of_round(Prompts(tokenizer, seed), options.mix, seed)
        for system in systems if number % 2 == 0 else reversed(systems):
            title = f"round {number + 1}, {system.name}"
            progress.say(f"{title}: starting ...")
            with found.timed(system.name), system.started(engines) as endpoints:
                found.measure(system, endpoints, plan, progress, title)
    return found


def result_of(found: Comparison, options: Options, about: Mapping[str, Any], command: str) -> BenchResult:
    environment = Environment.read()
    parts = {part: part_of(found.rounds[part], OURS) for part in _PARTS}
    named = {
        f"{system}, {part}": in_a_row(each)
        for part, systems in found.rounds.items()
        for system, each in systems.items()
    }
    tables = [figures_table(_PARTS[part], each["systems"]) for part, each in parts.items()]
    return BenchResult(
        name="compare",
        title="Beside Ray Serve LLM and plain vLLM",
        command=command,
        note=__doc__,
        settings={**about, **asdict(options.mix), "rounds": options.rounds, "took_s": found.took_s},
        seed=options.seed,
        environment=environment,
        figures={**parts[CHATS], "nothing_shared": parts[ALONE]},
        records=tuple(_numbered(named)),
        summaries={name: summarize(records) for name, records in named.items()},
        tables=(*tables, ratios_table(parts, OURS)),
        charts=tuple(charts_of(found.rounds, parts, OURS, environment.line())),
    )


def _numbered(named: Mapping[str, Sequence[RequestRecord]]) -> Iterator[RequestRecord]:
    index = itertools.count()
    for name, records in named.items():
        yield from (replace(each, index=next(index), phase=name) for each in records)


@click.command("compare")
@click.option("--rounds", type=click.IntRange(1), help="Of all systems. Default: 2; with --quick 1.")
@click.option("--quick", is_flag=True, help="One round of a small load: about 6 minutes on two cores.")
@click.option(
    "--system",
    "names",
    type=click.Choice(list(SYSTEMS)),
    multiple=True,
    default=tuple(SYSTEMS),
    help="Repeatable; all by default. Ratios need tierserve.",
)
@click.option("--seed", default=1, show_default=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write charts, an HTML page, JSON and a Parquet file of every request into this directory.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(
    rounds: int | None, quick: bool, names: tuple[str, ...], seed: int, out: Path | None, as_json: bool
) -> None:
    """The same load against tierserve, Ray Serve LLM (two routers) and plain vLLM, started and stopped in turn."""
    Environment.read()
    interrupt_on_sigterm()
    engines = local_engines()
    options = Options(QUICK if quick else Mix(), rounds or (1 if quick else 2), seed)
    check_machine(engines.settings, Machine.read())
    with progress_bars() as bars:
        found = run(engines, [SYSTEMS[name] for name in names], load_tokenizer(engines.directory), options, bars)
    command = command_line(click.get_current_context())
    hand_out(result_of(found, options, engines.about(), command), out, as_json=as_json)
