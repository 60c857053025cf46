"""`tierserve bench ttft`: time to first token by prompt length and by where the prompt's tokens come from.

Each round asks a prompt that nobody has seen, of each length, in this order, the hits several times:

    cold   writer, nothing anywhere
    l0     writer again: in the engine's own blocks
    l1     from a node's L1 alone: the writer after its L0 was emptied (with one node: the reader)
    l2     reader, on the other node, whose L0 and L1 never had it (with one node: after both were emptied)

Other servers have no such tiers: there a round is cold, and then the same again (`l0_s` is then what their cache does).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import click

from app.bench.command import Common, command_line, common_options, measure
from app.bench.load import Bars, BenchResult, PlannedRequest, RequestRecord
from app.bench.load.progress import Tick
from app.bench.load.session import Session
from app.bench.target import Target
from app.bench.ttft_result import LENGTHS, Options, PoolSpeed, result_of
from app.settings import home

PHASES = {phase: phase for phase in ("cold", "l2", "l1", "l0")}
_WARM_UP_TOKENS = 700


def run(target: Target, options: Options, progress: Bars, command: str) -> BenchResult:
    """Measure and judge.

    Raises:
        ServingError: a request failed, or did not come from where it should have.
    """
    rounds = _Rounds(target, options)
    tick = progress.track("ttft", (len(options.lengths) * options.rounds + 1) * rounds.steps)
    records, speed = rounds.measure(tick)
    chunk_tokens = target.tiers.chunk_tokens if target.tiers else 0
    return replace(result_of(records, options, target.about, speed, chunk_tokens, command), note=__doc__)


class _Rounds:
    def __init__(self, target: Target, options: Options) -> None:
        self._target, self._options, self._salt = target, options, uuid4().hex
        self._prompts = target.prompts(options.seed)

    @property
    def steps(self) -> int:
        """Requests of a round."""
        tiers = self._target.tiers
        hits = 1 if tiers is None else 4 if tiers.share_a_node(*tiers.pair()) else 3
        return 1 + hits * self._options.repeats

    def measure(self, tick: Tick) -> tuple[list[RequestRecord], PoolSpeed | None]:
        with Session(self._target.endpoint, tick) as session:
            per_token = self._warm_up(session)
            for turn in range(self._options.rounds):
                for tokens in self._options.lengths:
                    self._round(session, self._plan(tokens, turn), PHASES)
        return session.records, self._speed(per_token)

    def _plan(self, tokens: int, turn: int) -> PlannedRequest:
        message = self._prompts.user(tokens, f"ttft/{tokens}/{turn}")
        options = {"cache_salt": self._salt}
        return PlannedRequest(
            (message,), tokens, self._options.output_tokens, conversation=str(tokens), turn=turn, options=options
        )

    def _warm_up(self, session: Session) -> float:
        """A round that does not count: first requests and first loads pay for what they set up. Tells how many bytes a
        token takes in L1 (0: not known).
        """
        tiers, plan = self._target.tiers, self._plan(_WARM_UP_TOKENS, -1)
        before = tiers.l1_used_bytes(tiers.pair()[0]) if tiers else 0
        self._round(session, plan, dict.fromkeys(PHASES, "warm-up"))
        if tiers is None or tiers.share_a_node(*tiers.pair()):
            return 0.0
        chunks = plan.prompt_tokens // tiers.chunk_tokens
        return max(0, tiers.l1_used_bytes(tiers.pair()[0]) - before) / (chunks * tiers.chunk_tokens)

    def _round(self, session: Session, plan: PlannedRequest, phases: Mapping[str, str]) -> None:
        tiers = self._target.tiers
        if tiers is None:
            session.ask(plan, phases["cold"])
            for _ in range(self._options.repeats):
                session.ask(plan, phases["l0"])
            return
        writer, reader = tiers.pair()
        session.ask(plan.on(writer), phases["cold"])
        tiers.wait_until_stored(writer)
        for _ in range(self._options.repeats):
            session.ask(plan.on(writer), phases["l0"])
            if tiers.share_a_node(writer, reader):
                session.ask(plan.on(reader), phases["l1"])
                tiers.clear_all()
                session.ask(plan.on(reader), phases["l2"])
                session.ask(plan.on(writer), "refill")
                continue
            tiers.clear(writer, l1=False)
            session.ask(plan.on(writer), phases["l1"])
            session.ask(plan.on(reader), phases["l2"])
            tiers.clear(reader)

    def _speed(self, bytes_per_token: float) -> PoolSpeed | None:
        tiers = self._target.tiers
        if tiers is None or not bytes_per_token:
            return None
        from app.bench.pool_speed import pool_read_bytes_s

        directory = tiers.pool_directory(tiers.pair()[1])
        place = directory.parent if directory else Path(home())
        chunks = max(1, max(self._options.lengths) // tiers.chunk_tokens)
        read = pool_read_bytes_s(place, chunks, round(bytes_per_token * tiers.chunk_tokens))
        return PoolSpeed(bytes_per_token, read)


@click.command("ttft")
@click.option("--tokens", "lengths", type=click.IntRange(64), multiple=True, default=LENGTHS, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Medians are over this many.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Hits of each kind in a round.")
@click.option("--output-tokens", type=click.IntRange(1), default=4, show_default=True)
@common_options
def ttft(common: Common, lengths: tuple[int, ...], rounds: int, repeats: int, output_tokens: int) -> None:
    """Time to first token by prompt length: computed, and from L2, L1 and L0; speed-ups and goals.

    Starts an application on two nodes of this machine (about two minutes) and stops it, unless --url names one.
    """
    options, command = (
        Options(lengths, rounds, repeats, output_tokens, common.seed),
        command_line(click.get_current_context()),
    )
    measure(common, lambda target, bars: run(target, options, bars, command))
