"""`tierserve bench compare`: the same load against tierserve and what one would use without it.

Systems: tierserve (serve_configs/local.yaml on one node); Ray Serve LLM as shipped, power of two choices; Ray Serve LLM
with its own PrefixCacheAffinityRouter; one `vllm serve` for each replica, of which the client takes the next for each
request (round robin with no front that costs time). Each has the same model, number of replicas, engine arguments, KV
memory and threads. Two do not fit into a small machine's memory, so one after the other is started, warmed up, measured
and stopped, and all of that again for each round: every second round in the opposite order, each round with new texts.

The load: chats of several turns behind a few shared system prompts, several at a time, so that all of these systems
have something to reuse; and, apart from it, requests that share nothing, where keeping KV can only cost time and only
spreading requests well can win any. All that is shared fits into each engine's own KV memory. "Computed" are the prompt
tokens that had to be prefilled. Ratios are above 1 where tierserve is better and below 1 where it is worse; they say
nothing where rounds differ more than systems do.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from app.bench.command import command_line, hand_out, need_charts
from app.bench.compare_load import ALONE, CHATS, QUICK, Mix
from app.bench.compare_result import charts_of, in_a_row, part_of, tables_of
from app.bench.compare_run import Comparison, Options, run
from app.bench.doc import note_times, write_page
from app.bench.load import BenchResult, Environment, RequestRecord, load_tokenizer, progress_bars, summarize
from app.bench.systems import OURS, SYSTEMS, local_engines
from app.local.machine import Machine, check_machine
from app.local.signals import interrupt_on_sigterm


def result_of(found: Comparison, options: Options, about: Mapping[str, Any], command: str) -> BenchResult:
    environment = Environment.read()
    parts = {part: part_of(found.rounds[part], OURS) for part in (CHATS, ALONE)}
    named = {
        f"{system}, {part}": in_a_row(each)
        for part, systems in found.rounds.items()
        for system, each in systems.items()
    }
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
        tables=tuple(tables_of(parts, OURS)),
        charts=tuple(charts_of(found.rounds, parts, OURS, environment.line())),
    )


def _numbered(named: Mapping[str, Sequence[RequestRecord]]) -> Iterator[RequestRecord]:
    index = itertools.count()
    for name, records in named.items():
        yield from (replace(each, index=next(index), phase=name) for each in records)


@click.command("compare")
@click.option("--rounds", type=click.IntRange(1), help="Of all systems. Default: 2; with --quick 1.")
@click.option("--quick", is_flag=True, help="One round of a smaller load.")
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
@click.option(
    "--docs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write benchmarks.md and its charts into this directory, from everything that lies in --out.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(
    rounds: int | None,
    quick: bool,
    names: tuple[str, ...],
    seed: int,
    out: Path | None,
    docs: Path | None,
    as_json: bool,
) -> None:
    """The same load against tierserve, Ray Serve LLM (two routers) and plain vLLM, started and stopped in turn."""
    if docs is not None and out is None:
        raise click.UsageError("--docs is made of what lies in --out: name that as well")
    need_charts()
    Environment.read()
    interrupt_on_sigterm()
    engines = local_engines()
    options = Options(QUICK if quick else Mix(), rounds or (1 if quick else 2), seed)
    check_machine(engines.settings, Machine.read())
    with progress_bars() as bars:
        found = run(engines, [SYSTEMS[name] for name in names], load_tokenizer(engines.directory), options, bars)
    command = command_line(click.get_current_context())
    hand_out(result_of(found, options, engines.about(), command), out, as_json=as_json)
    if out is not None:
        note_times(out, {"compare": sum(found.took_s.values())})
        if docs is not None:
            click.echo(f"wrote {write_page(out, docs)}", err=True)
