"""`tierserve bench dialogue`: a conversation of four turns whose history grows, held with A, then replayed with B.

What A has computed B finds in the pool (on one node: in L1). Each round is a new conversation. Without tiers, the
replay goes to the same endpoint and shows what its own cache does.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import click

from app.bench.command import Common, command_line, common_options, measure
from app.bench.load import Bars, BenchResult, Conversation, Environment, PlannedRequest, Prompts, RequestRecord, Words
from app.bench.load.charts import Chart, bars
from app.bench.load.plan import Message
from app.bench.load.session import Session
from app.bench.load.summary import by
from app.bench.load.table import Table, times
from app.bench.sharing import warm_up
from app.bench.target import Target

TURNS = (530, 1058, 1586, 2114)
FIRST, REPLAY = "first, on A", "replayed, on B"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Tokens of the prompt at each turn, history included, and of each answer."""

    turns: tuple[int, ...] = TURNS
    answer_tokens: int = 32
    rounds: int = 3
    seed: int = 1


def plan(prompts: Prompts, dialogue: Dialogue, number: int) -> Conversation:
    """The answers in the history are part of the plan: A and B are sent the same."""
    name = f"dialogue {number}"
    messages: list[Message] = []
    requests = []
    for turn, tokens in enumerate(dialogue.turns):
        messages.append(prompts.user(tokens, f"{name}/{turn}", messages))
        requests.append(PlannedRequest(tuple(messages), tokens, dialogue.answer_tokens, conversation=name, turn=turn))
        answer = prompts.text(dialogue.answer_tokens, f"{name}/answer {turn}")
        messages.append({"role": "assistant", "content": answer})
    return Conversation(name, tuple(requests))


def run(target: Target, dialogue: Dialogue, progress: Bars, command: str) -> BenchResult:
    """Raises ServingError if a request fails."""
    prompts = target.prompts(dialogue.seed)
    plans = [plan(prompts, dialogue, number) for number in range(dialogue.rounds)]
    warm_up(target, plans)
    tick = progress.track("dialogue", 2 * dialogue.rounds * len(dialogue.turns))
    with Session(target.endpoint, tick) as session:
        for each in plans:
            _hold(session, target, each.in_phase("", cache_salt=uuid4().hex))
    return result_of(session.records, dialogue, target.about, command)


def _hold(session: Session, target: Target, conversation: Conversation) -> None:
    tiers = target.tiers
    if tiers is None:
        for phase in (FIRST, REPLAY):
            for request in conversation.requests:
                session.ask(request, phase)
        return
    for replica, phase in zip(tiers.pair(), (FIRST, REPLAY), strict=True):
        for request in conversation.requests:
            session.ask(request.on(replica), phase)
        tiers.wait_until_stored(replica)


def result_of(
    records: Sequence[RequestRecord], dialogue: Dialogue, about: Mapping[str, Any], command: str
) -> BenchResult:
    rows = [_row(turn, tokens, records) for turn, tokens in enumerate(dialogue.turns)]
    total = _total(rows)
    environment = Environment.read()
    return BenchResult(
        name="dialogue",
        title="A dialogue of four turns, held with one replica and replayed with another",
        command=command,
        note=__doc__,
        settings={**about, **asdict(dialogue)},
        seed=dialogue.seed,
        environment=environment,
        figures={"rows": rows, "total": total},
        records=tuple(records),
        summaries=by(records, lambda record: f"turn {record.turn + 1}, {record.phase}"),
        tables=(_table([*rows, total]),),
        charts=(_chart(rows, total, dialogue.rounds, environment.line()),),
    )


def _row(turn: int, tokens: int, records: Sequence[RequestRecord]) -> Row:
    """Medians over rounds."""
    found = {phase: [r for r in records if r.turn == turn and r.phase == phase] for phase in (FIRST, REPLAY)}
    ttft = {phase: statistics.median(r.ttft_s for r in each if r.ttft_s is not None) for phase, each in found.items()}
    e2e = {phase: statistics.median(r.e2e_s for r in each) for phase, each in found.items()}
    return {
        "turn": turn + 1,
        "tokens": tokens,
        "first_ttft_s": ttft[FIRST],
        "replay_ttft_s": ttft[REPLAY],
        "ttft_speed_up": ttft[FIRST] / ttft[REPLAY],
        "first_e2e_s": e2e[FIRST],
        "replay_e2e_s": e2e[REPLAY],
        "e2e_speed_up": e2e[FIRST] / e2e[REPLAY],
        "replay_hit_tokens": min((r.cached_tokens or 0) for r in found[REPLAY]),
    }


def _total(rows: Sequence[Row]) -> Row:
    sums = {
        name: sum(row[name] for row in rows)
        for name in ("tokens", "first_ttft_s", "replay_ttft_s", "first_e2e_s", "replay_e2e_s", "replay_hit_tokens")
    }
    return {
        "turn": "total",
        **sums,
        "ttft_speed_up": sums["first_ttft_s"] / sums["replay_ttft_s"],
        "e2e_speed_up": sums["first_e2e_s"] / sums["replay_e2e_s"],
    }


def _table(rows: Sequence[Row]) -> Table:
    heads = ("turn", "prompt", "TTFT on A", "TTFT on B", "A / B", "E2E on A", "E2E on B", "A / B", "hit on B")
    cells = [
        (
            str(row["turn"]),
            f"{row['tokens']:,}",
            f"{row['first_ttft_s']:.3f} s",
            f"{row['replay_ttft_s']:.3f} s",
            times(row["ttft_speed_up"]),
            f"{row['first_e2e_s']:.3f} s",
            f"{row['replay_e2e_s']:.3f} s",
            times(row["e2e_speed_up"]),
            f"{row['replay_hit_tokens']:,}",
        )
        for row in rows
    ]
    return Table(heads, tuple(cells), "Dialogue")


def _chart(rows: Sequence[Row], total: Row, rounds: int, foot: str) -> Chart:
    words = Words(
        f"Replayed elsewhere, first tokens come {times(total['ttft_speed_up'])} sooner",
        f"Time to first token of each turn; dialogues: {rounds}",
        "turn, and tokens in its prompt",
        "seconds",
        foot,
    )
    groups = {
        f"{row['turn']}: {row['tokens']:,}": {FIRST: row["first_ttft_s"], REPLAY: row["replay_ttft_s"]} for row in rows
    }
    return bars("ttft", words, groups, colours={FIRST: "#8A8A8A", REPLAY: "#0072B2"})


@click.command("dialogue")
@click.option("--tokens", "turns", type=click.IntRange(64), multiple=True, default=TURNS, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Medians are over this many.")
@click.option("--answer-tokens", type=click.IntRange(1), default=32, show_default=True)
@common_options
def dialogue(common: Common, turns: tuple[int, ...], rounds: int, answer_tokens: int) -> None:
    """Four turns with accumulating history, first on one replica, then replayed on another."""
    options, command = Dialogue(turns, answer_tokens, rounds, common.seed), command_line(click.get_current_context())
    measure(common, lambda target, bars: run(target, options, bars, command))
