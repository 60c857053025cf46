"""`tierserve bench all`: every measurement, one after the other, and docs/benchmarks.md out of what they wrote.

Those of engines share one application. The others are commands of their own, run as a person would run them, in
processes of their own: what they load and start is gone before the next one begins.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from app.bench.agents import agents
from app.bench.command import Common, Shared, common_options
from app.bench.concurrency import concurrency
from app.bench.dialogue import dialogue
from app.bench.doc import note_times, write_page
from app.bench.generators import generators
from app.bench.load import Bars, progress_bars
from app.bench.offline import OFFLINE, run_offline
from app.bench.rag import rag
from app.bench.ttft import ttft
from app.errors import ServingError

ENGINES: dict[str, click.Command] = {
    each.name or "": each for each in (ttft, dialogue, rag, agents, concurrency, generators)
}
SYSTEMS = ("compare",)
"""They start systems of their own, and write their results themselves."""
NAMES = (*ENGINES, *SYSTEMS, *OFFLINE)
# What differs from the defaults where a quarter of an hour on two cores has to be enough for all.
_QUICK: dict[str, tuple[str, ...]] = {
    "ttft": ("--rounds", "2"),
    "dialogue": ("--rounds", "1", "--answer-tokens", "16"),
    "rag": ("--requests", "12", "--documents", "5"),
    "agents": ("--agents", "2", "--steps", "4"),
    "concurrency": ("--step-s", "5"),
    "compare": ("--quick",),
}


@dataclass
class _Suite:
    common: Common
    out: Path
    quick: bool
    took_s: dict[str, float] = field(default_factory=dict)

    def engines(self, names: Sequence[str], bars: Bars) -> None:
        """One application for all of them."""
        if not names:
            return
        started = time.perf_counter()
        with self.common.target(bars) as target:
            self.took_s["start of the application"] = time.perf_counter() - started
            for name in names:
                arguments = [*(_QUICK.get(name, ()) if self.quick else ()), "--out", str(self.out)]
                if self.common.seed != 1:
                    arguments += ["--seed", str(self.common.seed)]
                with self._timed(name):
                    ENGINES[name].main(arguments, prog_name=name, standalone_mode=False, obj=Shared(target, bars))

    def systems(self, names: Sequence[str], bars: Bars) -> None:
        for name in names:
            bars.say(f"{name} ...")
            quick = _QUICK.get(name, ()) if self.quick else ()
            arguments = ["bench", name, *quick, "--seed", str(self.common.seed), "--out", str(self.out)]
            with self._timed(name):
                done = subprocess.run([sys.executable, "-m", "app.cli", *arguments], capture_output=True, text=True)
            if done.returncode != 0:
                raise ServingError(f"tierserve {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")

    def offline(self, names: Sequence[str], bars: Bars) -> None:
        for name in names:
            bars.say(f"{name} ...")
            with self._timed(name):
                run_offline(name, self.out, quick=self.quick).write(self.out)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.took_s[name] = time.perf_counter() - started


@click.command("all")
@click.option("--quick", is_flag=True, help="Fewer rounds and requests: within 15 minutes on two cores.")
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Repeatable; all by default.")
@click.option(
    "--docs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write benchmarks.md and its charts into this directory, from everything that lies in --out.",
)
@common_options
def suite(common: Common, quick: bool, only: tuple[str, ...], docs: Path | None) -> None:
    """All measurements, and with --docs the page that shows them.

    Files go to --out (default: build/bench). One application is started for all measurements of engines, unless
    --url names one; then nothing is compared with systems that would have to be started beside it.
    """
    run = _Suite(common, common.out or Path("build/bench"), quick)
    chosen = chosen_of(only, common.url)
    with progress_bars() as bars:
        run.engines([name for name in chosen if name in ENGINES], bars)
        run.systems([name for name in chosen if name in SYSTEMS], bars)
        run.offline([name for name in chosen if name in OFFLINE], bars)
    took = {name: round(seconds, 1) for name, seconds in run.took_s.items()}
    note_times(run.out, took)
    written = [write_page(run.out, docs)] if docs is not None else []
    if common.as_json:
        click.echo(json.dumps({"bench": "all", "out": str(run.out), "took_s": took, "pages": list(map(str, written))}))
        return
    for name, seconds in took.items():
        click.echo(f"{seconds:8.1f} s  {name}")
    click.echo(f"{sum(took.values()):8.1f} s  in all; see {', '.join(map(str, [run.out, *written]))}")


def chosen_of(only: Sequence[str], url: str | None) -> Sequence[str]:
    """The names to run: those asked for, or all that the endpoint allows."""
    return only or [name for name in NAMES if url is None or name not in SYSTEMS]
