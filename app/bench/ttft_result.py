"""What the requests of `tierserve bench ttft` add up to: rows, goals, charts. Pure but for the drawing."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.bench.load import BenchResult, Environment, Goal, RequestRecord, Words
from app.bench.load.charts import TIER_COLOURS, Chart, bars, lines
from app.bench.load.result import at_least, at_most
from app.bench.load.summary import by
from app.bench.load.table import Table, number, times
from app.errors import ServingError

LENGTHS = (500, 1000, 1500, 2000, 2500, 3000)
_PHASES = ("cold", "l2", "l1", "l0")
_COLOURS = {phase.upper() if phase != "cold" else phase: TIER_COLOURS[phase] for phase in _PHASES}
_GOAL_TOKENS, _GOAL_SPEED_UP, _GOAL_SLACK = 2500, 15.0, 1.3
_LONG, _GOAL_SHARE = 2000, 0.97

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    lengths: tuple[int, ...] = LENGTHS
    rounds: int = 5
    repeats: int = 3
    output_tokens: int = 4
    seed: int = 1


@dataclass(frozen=True, slots=True)
class PoolSpeed:
    """What a load from L2 has to move at least, and how fast the pool's files can be read."""

    bytes_per_token: float
    read_bytes_s: float

    def seconds(self, tokens: int) -> float:
        return tokens * self.bytes_per_token / self.read_bytes_s


def result_of(
    records: Sequence[RequestRecord],
    options: Options,
    about: Mapping[str, Any],
    speed: PoolSpeed | None,
    chunk_tokens: int,
    command: str,
) -> BenchResult:
    """`chunk_tokens` is 0 for an endpoint without tiers, `speed` None where L2 could not be read from here.

    Raises:
        ServingError: tokens did not come from where a phase says.
    """
    counted = [record for record in records if record.phase in _PHASES]
    for record in counted:
        check_origin(record, chunk_tokens)
    rows = [
        _row(tokens, [r for r in counted if r.planned_tokens == tokens], chunk_tokens) for tokens in options.lengths
    ]
    environment = Environment.read()
    return BenchResult(
        name="ttft",
        title="Time to first token by where the prompt's tokens come from",
        command=command,
        settings={**about, **asdict(options), "chunk_tokens": chunk_tokens},
        seed=options.seed,
        environment=environment,
        figures={"rows": rows, "pool": asdict(speed) if speed else None, "answers_equal": answers_equal(counted)},
        records=tuple(records),
        summaries=by(counted, lambda record: f"{record.planned_tokens} {record.phase}"),
        goals=tuple(goals(rows, speed)) if chunk_tokens else (),
        tables=(_table(rows),),
        charts=tuple(_charts(rows, options.rounds, environment.line())),
    )


def check_origin(record: RequestRecord, chunk_tokens: int) -> None:
    """Raises ServingError unless the record's tokens come from the tier that its phase names, and from no other."""
    if not chunk_tokens:
        return
    found = {tier: record.tokens(tier) or 0 for tier in ("l0", "l1", "l2")}
    others = sum(tokens for tier, tokens in found.items() if tier != record.phase)
    if others or (record.phase != "cold" and not found[record.phase]):
        raise ServingError(
            f"of {record.prompt_tokens} prompt tokens {found} came from the tiers where only {record.phase} should have"
            f" been hit: is somebody else using the application?"
        )


def answers_equal(records: Sequence[RequestRecord]) -> bool:
    """Whether each prompt was answered with the same words wherever its tokens came from."""
    answers: dict[tuple[str, int], set[str]] = {}
    for record in records:
        answers.setdefault((record.conversation, record.turn), set()).add(record.text)
    return all(len(texts) == 1 for texts in answers.values())


def _row(tokens: int, records: Sequence[RequestRecord], chunk_tokens: int) -> Row:
    """Medians over rounds; `hit_tokens` is the fewest that any round loaded from L2 (without tiers: had cached)."""
    ttft = {phase: [r.ttft_s for r in records if r.phase == phase and r.ttft_s is not None] for phase in _PHASES}
    medians = {phase: statistics.median(values) if values else None for phase, values in ttft.items()}
    hits = [r.cached_tokens or 0 for r in records if r.phase == ("l2" if chunk_tokens else "l0")]
    cold = medians["cold"]
    return {
        "tokens": tokens,
        **{f"{phase}_s": medians[phase] for phase in _PHASES},
        "hit_tokens": min(hits, default=0),
        "full_chunk_tokens": tokens // chunk_tokens * chunk_tokens if chunk_tokens else None,
        **{f"{phase}_speed_up": _ratio(cold, medians[phase]) for phase in _PHASES if phase != "cold"},
    }


def goals(rows: Sequence[Row], speed: PoolSpeed | None) -> list[Goal]:
    """The goals of the published setup on a machine of this kind. Those about lengths not measured are not met."""
    at_goal = [row["l2_speed_up"] for row in rows if row["tokens"] == _GOAL_TOKENS]
    long = [row["hit_tokens"] / row["tokens"] for row in rows if row["tokens"] >= _LONG]
    bounds = [row["l2_s"] / (row["l1_s"] + speed.seconds(row["hit_tokens"])) for row in rows] if speed else []
    return [
        at_least(f"cold / L2 at {_GOAL_TOKENS:,} tokens", _GOAL_SPEED_UP, next(iter(at_goal), None)),
        at_least("cold / L2 at every length", 1.0, min(row["l2_speed_up"] for row in rows)),
        at_least("full chunks hit", 1.0, min(row["hit_tokens"] / max(1, row["full_chunk_tokens"]) for row in rows)),
        at_least(f"share of the prompt hit from {_LONG:,} tokens on", _GOAL_SHARE, min(long, default=None)),
        at_most("L2 / (L1 + bytes at the pool's measured read bandwidth)", _GOAL_SLACK, max(bounds, default=None)),
    ]


def _ratio(cold: float | None, other: float | None) -> float | None:
    return cold / other if cold and other else None


def _table(rows: Sequence[Row]) -> Table:
    heads = ("tokens", "cold", "L2", "L1", "L0", "cold / L2", "cold / L1", "cold / L0", "hit in L2")
    return Table(
        heads,
        tuple(
            (
                f"{row['tokens']:,}",
                *(number(row[f"{phase}_s"], "{:.3f} s") for phase in _PHASES),
                *(times(row[f"{phase}_speed_up"]) for phase in ("l2", "l1", "l0")),
                f"{row['hit_tokens']:,}",
            )
            for row in rows
        ),
        "Time to first token",
    )


def _charts(rows: Sequence[Row], rounds: int, foot: str) -> list[Chart]:
    last = max(rows, key=lambda row: row["tokens"])
    best = "l2" if last["l2_speed_up"] else "l0"
    said = f"{last['tokens']:,} tokens: {times(last[f'{best}_speed_up'])} sooner from {best.upper()} than computed"
    series = {
        name: [(row["tokens"], row[f"{phase}_s"]) for row in rows if row[f"{phase}_s"] is not None]
        for name, phase in zip(_COLOURS, _PHASES, strict=True)
    }
    shown = {name: points for name, points in series.items() if points}
    words = Words(
        said, f"Time to first token, medians; prompts of each length: {rounds}", "tokens in the prompt", "seconds", foot
    )
    ups = {
        f"{row['tokens']:,}": {
            phase.upper(): row[f"{phase}_speed_up"] for phase in ("l2", "l1", "l0") if row[f"{phase}_speed_up"]
        }
        for row in rows
    }
    ratio = Words("Times sooner than computing the prompt", words.subtitle, words.x, "times", foot)
    return [
        lines("seconds", words, shown, colours=_COLOURS, log_y=True),
        bars("speed-up", ratio, ups, colours=_COLOURS, form="{:.0f}"),
    ]
