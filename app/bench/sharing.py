"""One load twice: as it is, and with nothing shared between requests. What sharing prompts is worth, on one system.

Alone, each request carries a cache salt of its own, so that no tier can serve it: the same prompts, the same engines,
the same concurrency, every token computed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import click

from app.bench.command import Common, command_line, measure
from app.bench.load import (
    Bars,
    BenchResult,
    Conversation,
    Environment,
    Prompts,
    RequestRecord,
    Summary,
    Words,
    run_closed,
)
from app.bench.load.charts import TIER_COLOURS, Chart, distribution, stacked
from app.bench.load.plan import count
from app.bench.load.session import Session
from app.bench.load.summary import TIERS, summarize
from app.bench.load.table import Table, number, times
from app.bench.target import Target

SHARED, ALONE = "shared", "alone"
_NAMES = {"l0": "L0", "l1": "L1", "l2": "L2", "computed": "computed"}


@dataclass(frozen=True, slots=True)
class Load:
    """A plan and how it is sent. `first` and `later` name a conversation's first request and those that follow."""

    name: str
    title: str
    plan: tuple[Conversation, ...]
    concurrency: int
    settings: Mapping[str, Any]
    seed: int
    first: str
    later: str
    note: str = ""


def run(target: Target, load: Load, progress: Bars, command: str, *, alone: bool = True) -> BenchResult:
    """Both ways, or only shared. Failed requests are counted, not raised: a loaded system may refuse some."""
    warm_up(target, load.plan)
    records: list[RequestRecord] = []
    for phase in (SHARED, ALONE) if alone else (SHARED,):
        tick = progress.track(f"{load.name}, {phase}", count(load.plan))
        done = run_closed(target.endpoint, in_phase(load.plan, phase, uuid4().hex), load.concurrency, tick)
        records += [replace(record, index=record.index + len(records)) for record in done]
    return result_of(load, records, target.about, command)


def measure_load(common: Common, load_of: Callable[[Prompts], Load], *, alone: bool) -> None:
    """A benchmark's command: `run` with the load made of the target's prompts."""
    command = command_line(click.get_current_context())
    measure(common, lambda target, bars: run(target, load_of(target.prompts(common.seed)), bars, command, alone=alone))


def warm_up(target: Target, plan: Sequence[Conversation]) -> None:
    """A short request to each replica, or a few to an endpoint of which no replicas are known."""
    sample = plan[0].in_phase("warm-up", cache_salt=uuid4().hex).requests[0]
    with Session(target.endpoint) as session:
        if target.tiers is None:
            for _ in range(4):
                session.ask(sample)
            return
        for replica in target.tiers.replicas:
            session.ask(sample.on(replica))


def in_phase(plan: Sequence[Conversation], phase: str, salt: str) -> list[Conversation]:
    """Shared: `salt` for all (a new one, so that nothing of an earlier run is hit). Alone: one for each request."""
    if phase == SHARED:
        return [each.in_phase(phase, cache_salt=salt) for each in plan]
    return [
        replace(
            each, requests=tuple(replace(r, phase=phase, options={"cache_salt": uuid4().hex}) for r in each.requests)
        )
        for each in plan
    ]


def result_of(load: Load, records: Sequence[RequestRecord], about: Mapping[str, Any], command: str) -> BenchResult:
    phases = list(dict.fromkeys(record.phase for record in records))
    whole = {phase: summarize([r for r in records if r.phase == phase]) for phase in phases}
    shared = [record for record in records if record.phase == SHARED]
    parts = {
        f"{SHARED}, {load.first}": summarize([r for r in shared if r.turn == 0]),
        f"{SHARED}, {load.later}": summarize([r for r in shared if r.turn > 0]),
    }
    environment = Environment.read()
    return BenchResult(
        name=load.name,
        title=load.title,
        command=command,
        note=load.note,
        settings={**about, **load.settings, "concurrency": load.concurrency},
        seed=load.seed,
        environment=environment,
        figures={"ratios": ratios(whole), "tokens": {phase: each.tokens for phase, each in whole.items()}},
        records=tuple(records),
        summaries={**whole, **parts},
        tables=(_table({**whole, **parts}, ratios(whole)),),
        charts=tuple(_charts(load, records, whole, environment.line())),
    )


def ratios(whole: Mapping[str, Summary]) -> dict[str, float | None]:
    """How many times better shared is than alone; None where one of them is missing."""
    shared, alone = whole.get(SHARED), whole.get(ALONE)
    if shared is None or alone is None or not (shared.ttft_s and alone.ttft_s and shared.e2e_s and alone.e2e_s):
        return {"ttft_median": None, "ttft_p90": None, "e2e_median": None, "requests_per_s": None}
    return {
        "ttft_median": alone.ttft_s.median / shared.ttft_s.median,
        "ttft_p90": alone.ttft_s.p90 / shared.ttft_s.p90,
        "e2e_median": alone.e2e_s.median / shared.e2e_s.median,
        "requests_per_s": shared.requests_per_s / alone.requests_per_s,
    }


def shares(summary: Summary) -> dict[str, float]:
    """Of the prompts' tokens, by the tier that they came from; empty if the endpoint does not tell."""
    total = sum(summary.tokens.values())
    return {_NAMES[tier]: summary.tokens[tier] / total for tier in TIERS} if total else {}


def _table(summaries: Mapping[str, Summary], better: Mapping[str, float | None]) -> Table:
    heads = ("", "requests", "failed", "TTFT p50", "TTFT p90", "E2E p50", "requests/s", "hit", "L0", "L1", "L2")
    rows = []
    for name, each in summaries.items():
        found, row = shares(each), each.row()
        rows.append(
            (
                name,
                str(each.requests),
                str(each.failed),
                number(row["ttft_median_s"], "{:.3f} s"),
                number(row["ttft_p90_s"], "{:.3f} s"),
                number(row["e2e_median_s"], "{:.3f} s"),
                f"{each.requests_per_s:.2f}" if name in (SHARED, ALONE) else "",
                number(100 * each.hit_ratio if each.hit_ratio is not None else None, "{:.1f} %"),
                *(number(100 * found[tier] if found else None, "{:.1f} %") for tier in ("L0", "L1", "L2")),
            )
        )
    if better["ttft_median"]:
        ratio = [times(better[name]) for name in ("ttft_median", "ttft_p90", "e2e_median", "requests_per_s")]
        rows.append(("shared is better", "", "", *ratio, "", "", "", ""))
    return Table(heads, tuple(rows), "Shared and alone")


def _charts(load: Load, records: Sequence[RequestRecord], whole: Mapping[str, Summary], foot: str) -> list[Chart]:
    ratio = ratios(whole)["ttft_median"]
    said = f"{load.name.capitalize()}: half the answers begin {times(ratio)} sooner" if ratio else load.title
    words = Words(said, "Share of requests whose first token came within", "seconds", "% of requests", foot)
    samples = {phase: [r.ttft_s for r in records if r.phase == phase and r.ttft_s is not None] for phase in whole}
    charts = [distribution("ttft", words, samples, {SHARED: "#0072B2", ALONE: "#8A8A8A"})]
    if found := shares(whole[SHARED]):
        computed = Words(
            f"{load.name.capitalize()}: {100 * (1 - found['computed']):.0f} % of prompt tokens were not computed",
            "Where the prompts' tokens came from",
            foot=foot,
        )
        told = {phase: shares(each) for phase, each in whole.items() if shares(each)}
        colours = {_NAMES[tier]: TIER_COLOURS[tier] for tier in TIERS}
        charts.append(stacked("tiers", computed, told, colours))
    return charts
