"""`tierserve bench concurrency`: requests that arrive faster and faster, until too few are answered in time.

Chats behind one system prompt arrive as a Poisson process; each rate is twice the one before. Saturated is the rate at
which fewer than half of the requests get their first token within the target. Goodput is those that do, a second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import uuid4

import click

from app.bench.command import Common, command_line, common_options, measure
from app.bench.load import (
    Bars,
    BenchResult,
    Conversation,
    Environment,
    PlannedRequest,
    Prompts,
    RequestRecord,
    Words,
    run_open,
)
from app.bench.load.charts import Chart, lines
from app.bench.load.plan import single
from app.bench.load.summary import summarize
from app.bench.load.table import Table, number
from app.bench.sharing import ALONE, SHARED, in_phase, warm_up
from app.bench.target import Target

_SATURATED = 0.5
_STEPS = 10
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rising:
    """The load, and what counts as in time. A rate is held for `step_s`, with at least `fewest` requests."""

    system_tokens: int = 768
    question_tokens: int = 64
    output_tokens: int = 8
    first_rate: float = 0.25
    step_s: float = 20.0
    fewest: int = 8
    ttft_target_s: float = 2.0
    seed: int = 1

    def requests(self, rate: float) -> int:
        return max(self.fewest, round(rate * self.step_s))


def plan(prompts: Prompts, rising: Rising, step: int, count: int) -> list[Conversation]:
    """Questions that nobody has asked before, behind one system prompt."""
    system = {"role": "system", "content": prompts.text(rising.system_tokens, "system")}
    made = []
    for number_ in range(count):
        name = f"{step}/{number_}"
        messages = (system, {"role": "user", "content": prompts.text(rising.question_tokens, name)})
        length = prompts.prompt_length(messages)
        made.append(single(PlannedRequest(messages, length, rising.output_tokens, conversation=name)))
    return made


def run(target: Target, rising: Rising, progress: Bars, command: str, *, alone: bool = True) -> BenchResult:
    """Shared (and alone) from the first rate until saturation."""
    prompts = target.prompts(rising.seed)
    warm_up(target, plan(prompts, rising, -1, 1))
    records: list[RequestRecord] = []
    rows: list[Row] = []
    for phase in (SHARED, ALONE) if alone else (SHARED,):
        rate, salt = rising.first_rate, uuid4().hex
        for step in range(_STEPS):
            load = in_phase(plan(prompts, rising, step, rising.requests(rate)), phase, salt)
            tick = progress.track(f"{phase}, {rate:g} a second", len(load))
            done = run_open(target.endpoint, load, rate, rising.seed + step, tick)
            records += [replace(r, index=r.index + len(records), phase=f"{phase}, {rate:g}/s") for r in done]
            rows.append(_row(phase, rate, done, rising.ttft_target_s))
            if rows[-1]["goodput_share"] < _SATURATED:
                break
            rate *= 2
    return result_of(rows, records, rising, target.about, command)


def _row(phase: str, rate: float, records: Sequence[RequestRecord], target_s: float) -> Row:
    found = summarize(records, target_s)
    return {
        "phase": phase,
        "rate": rate,
        **found.row(),
        "goodput_rps": found.goodput_rps,
        "goodput_share": found.goodput_share,
    }


def result_of(
    rows: Sequence[Row], records: Sequence[RequestRecord], rising: Rising, about: Mapping[str, Any], command: str
) -> BenchResult:
    environment = Environment.read()
    best = {phase: max(row["goodput_rps"] for row in rows if row["phase"] == phase) for phase in _phases(rows)}
    return BenchResult(
        name="concurrency",
        title=f"Goodput at a rising rate: first token within {rising.ttft_target_s:g} s",
        command=command,
        note=__doc__,
        settings={**about, **asdict(rising)},
        seed=rising.seed,
        environment=environment,
        figures={"rows": list(rows), "goodput_max_rps": best},
        records=tuple(records),
        tables=(_table(rows),),
        charts=tuple(_charts(rows, best, rising, environment.line())),
    )


def _phases(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["phase"] for row in rows))


def _table(rows: Sequence[Row]) -> Table:
    heads = ("load", "arrivals", "requests", "failed", "in time", "goodput", "TTFT p50", "TTFT p90", "ITL p50", "hit")
    cells = [
        (
            row["phase"],
            f"{row['rate']:g}/s",
            str(row["requests"]),
            str(row["failed"]),
            f"{100 * row['goodput_share']:.0f} %",
            f"{row['goodput_rps']:.2f}/s",
            number(row["ttft_median_s"], "{:.3f} s"),
            number(row["ttft_p90_s"], "{:.3f} s"),
            number(row["itl_median_s"], "{:.3f} s"),
            number(None if row["hit_ratio"] is None else 100 * row["hit_ratio"], "{:.1f} %"),
        )
        for row in rows
    ]
    return Table(heads, tuple(cells), "Rising rate")


def _charts(rows: Sequence[Row], best: Mapping[str, float], rising: Rising, foot: str) -> list[Chart]:
    colours = {SHARED: "#0072B2", ALONE: "#8A8A8A"}
    target = f"first token within {rising.ttft_target_s:g} s"
    said = f"{best[SHARED]:.1f} requests a second in time" + (
        f", {best[ALONE]:.1f} without sharing" if ALONE in best else ""
    )

    def series(figure: str) -> dict[str, list[tuple[float, float]]]:
        return {
            phase: [(row["rate"], row[figure]) for row in rows if row["phase"] == phase and row[figure] is not None]
            for phase in best
        }

    goodput = Words(said, f"Goodput ({target}) by arrival rate", "arrivals a second", "in time, a second", foot)
    waits = Words(
        "How long first tokens take as arrivals quicken", "90th percentile of TTFT", goodput.x, "seconds", foot
    )
    return [
        lines("goodput", goodput, series("goodput_rps"), colours=colours, log_x=True),
        lines(
            "ttft",
            waits,
            series("ttft_p90_s"),
            colours=colours,
            log_x=True,
            log_y=True,
            level=(rising.ttft_target_s, "target"),
        ),
    ]


@click.command("concurrency")
@click.option("--ttft-target", type=click.FloatRange(0, min_open=True), default=2.0, show_default=True, help="Seconds.")
@click.option("--first-rate", type=click.FloatRange(0, min_open=True), default=0.25, show_default=True)
@click.option("--step-s", type=click.FloatRange(1), default=20.0, show_default=True, help="How long a rate is held.")
@click.option("--alone/--no-alone", default=True, show_default=True, help="Also with nothing shared, for comparison.")
@common_options
def concurrency(common: Common, ttft_target: float, first_rate: float, step_s: float, alone: bool) -> None:
    """Rising arrival rate to saturation: goodput under a TTFT target."""
    options = Rising(ttft_target_s=ttft_target, first_rate=first_rate, step_s=step_s, seed=common.seed)
    command = command_line(click.get_current_context())
    measure(common, lambda target, bars: run(target, options, bars, command, alone=alone))
