"""What a comparison found: figures of each system, how many times better ours is, where it is not. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.bench.load import RequestRecord, Words
from app.bench.load.charts import Chart, bars, distribution
from app.bench.load.summary import Summary, summarize
from app.bench.load.table import Table, number, times

# Seconds, of which less is better; of requests a second more is.
SECONDS = {
    "ttft_mean_s": "TTFT mean",
    "ttft_median_s": "TTFT p50",
    "ttft_p90_s": "TTFT p90",
    "e2e_median_s": "E2E p50",
}
RATE = {"requests_per_s": "requests/s"}
HEADS = {**SECONDS, **RATE}
Figures = dict[str, Any]
# part -> system -> its records, a sequence for each round
Rounds = Mapping[str, Mapping[str, Sequence[Sequence[RequestRecord]]]]


def in_a_row(rounds: Sequence[Sequence[RequestRecord]]) -> list[RequestRecord]:
    """Rounds as if each had begun when the one before it ended: so their rate is that of the time they took."""
    joined: list[RequestRecord] = []
    at = 0.0
    for records in rounds:
        joined += [
            replace(each, scheduled_s=each.scheduled_s + at, started_s=each.started_s + at, index=len(joined) + place)
            for place, each in enumerate(records)
        ]
        at = max((each.started_s + each.e2e_s for each in joined), default=at)
    return joined


def figures_of(rounds: Sequence[Sequence[RequestRecord]]) -> Figures:
    """Over the requests of all rounds; `ttft_mean_by_round_s` says how far rounds differ."""
    whole = summarize(in_a_row(rounds))
    return {
        **whole.row(),
        "computed_tokens": _computed(whole),
        "ttft_mean_by_round_s": [summarize(records).row()["ttft_mean_s"] for records in rounds],
    }


def _computed(whole: Summary) -> int | None:
    return None if whole.hit_ratio is None else round(whole.prompt_tokens * (1 - whole.hit_ratio))


def ratios_of(ours: Figures, theirs: Figures) -> dict[str, float | None]:
    """How many times better ours is: above 1 it is, below 1 it is worse. None where one of them has no figure."""
    better = {name: _over(theirs[name], ours[name]) for name in SECONDS}
    return {**better, **{name: _over(ours[name], theirs[name]) for name in RATE}}


def _over(more: float | None, less: float | None) -> float | None:
    return more / less if more is not None and less else None


def part_of(rounds: Mapping[str, Sequence[Sequence[RequestRecord]]], ours: str) -> dict[str, Any]:
    """Figures and ratios of all systems under one part of the load, and the share of answers that are ours' as well."""
    systems = {name: figures_of(each) for name, each in rounds.items()}
    for name, each in rounds.items():
        systems[name]["same_answers"] = same_answers(rounds.get(ours, ()), each)
    others = [name for name in systems if name != ours]
    ratios = {name: ratios_of(systems[ours], systems[name]) for name in others} if ours in systems else {}
    return {"systems": systems, "ratios": ratios}


def same_answers(ours: Sequence[Sequence[RequestRecord]], theirs: Sequence[Sequence[RequestRecord]]) -> float | None:
    """Of the requests that both answered: how many with the same text."""
    pairs = []
    for one, other in zip(ours, theirs, strict=False):
        texts = {record.index: record.text for record in one if record.ok}
        pairs += [texts[each.index] == each.text for each in other if each.ok and each.index in texts]
    return sum(pairs) / len(pairs) if pairs else None


def tables_of(parts: Mapping[str, Mapping[str, Any]], ours: str) -> list[Table]:
    """For each part its figures and its ratios, and one of what is to be known of the measurement itself."""
    tables: list[Table] = []
    for part, found in parts.items():
        tables += [_figures_table(part, found), _ratios_table(part, found, ours)]
    return [*tables, _rounds_table(parts)]


def _figures_table(part: str, found: Mapping[str, Any]) -> Table:
    rows = [
        (
            name,
            *(number(each[figure], "{:.3f} s") for figure in SECONDS),
            number(each["requests_per_s"], "{:.2f}"),
            _percent(each["hit_ratio"]),
            number(each["computed_tokens"], "{:,}"),
        )
        for name, each in found["systems"].items()
    ]
    return Table((part, *HEADS.values(), "hit", "computed"), tuple(rows), f"Measured: {part}")


def _ratios_table(part: str, found: Mapping[str, Any], ours: str) -> Table:
    """The last column names every figure in which ours is the worse one."""
    rows = []
    for name, ratios in found["ratios"].items():
        lost = [HEADS[figure] for figure, ratio in ratios.items() if ratio is not None and ratio < 1]
        rows.append((name, *(number(ratio, "{:.2f} x") for ratio in ratios.values()), ", ".join(lost) or "nothing"))
    heads = (f"{part}, beside", *HEADS.values(), "we lose in")
    return Table(heads, tuple(rows), f"How many times better {ours} is (below 1: worse): {part}")


def _rounds_table(parts: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for part, found in parts.items():
        for name, each in found["systems"].items():
            means = [value for value in each["ttft_mean_by_round_s"] if value is not None]
            best, worst = (min(means), max(means)) if means else (None, None)
            counts = (str(each["requests"]), str(each["failed"]))
            spread = (number(best, "{:.3f} s"), number(worst, "{:.3f} s"))
            rows.append((f"{part}: {name}", *counts, *spread, _percent(each["same_answers"])))
    heads = ("how sure", "requests", "failed", "TTFT mean, best round", "worst round", "answers as ours")
    return Table(heads, tuple(rows), "How sure this is")


def charts_of(rounds: Rounds, parts: Mapping[str, Mapping[str, Any]], ours: str, foot: str) -> list[Chart]:
    means = {
        part: {name: each["ttft_mean_s"] for name, each in found["systems"].items() if each["ttft_mean_s"] is not None}
        for part, found in parts.items()
    }
    title, *others = [f"{part.capitalize()}: {_said(found, ours)}" for part, found in parts.items()]
    subtitle = ". ".join([*others, "Mean time to first token, all rounds"])
    charts = [bars("ttft", Words(title, subtitle, y="seconds", foot=foot), means)]
    for part, systems in rounds.items():
        samples = {
            name: [r.ttft_s for records in each for r in records if r.ttft_s is not None]
            for name, each in systems.items()
        }
        words = Words(f"{part.capitalize()}: when the first token came", "", "seconds", "% of requests", foot)
        charts.append(distribution(part.replace(" ", "-"), words, samples))
    return charts


def _said(found: Mapping[str, Any], ours: str) -> str:
    """A part's outcome: against the best of the others, won or lost."""
    ratios = {n: each["ttft_mean_s"] for n, each in found["ratios"].items() if each["ttft_mean_s"] is not None}
    if not ratios:
        return "time to first token"
    best = min(ratios, key=lambda name: ratios[name])
    first, second, ratio = (ours, best, ratios[best]) if ratios[best] >= 1 else (best, ours, 1 / ratios[best])
    return f"{first} is {times(ratio)} sooner than {second}"


def _percent(share: float | None) -> str:
    return number(None if share is None else 100 * share, "{:.1f} %")
