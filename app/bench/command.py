"""What every benchmark of an endpoint has in common: its options, its target, and what becomes of its result."""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table as RichTable

from app.bench.load.environment import Environment
from app.bench.load.progress import Bars, progress_bars
from app.bench.load.result import BenchResult
from app.bench.load.table import Table, goals_table, latency_table
from app.bench.target import Target, running_target, started_target
from app.errors import MachineError
from app.local.signals import interrupt_on_sigterm

F = TypeVar("F", bound=Callable[..., Any])
# Options that say where, not what: they are not part of the command that a page names.
_NOT_NAMED = ("out", "docs", "as_json", "url", "address", "api_key")


@dataclass(frozen=True, slots=True)
class Common:
    """The options of `common_options`, as a click command receives them."""

    url: str | None
    address: str | None
    api_key: str
    model: str | None
    tokenizer: str | None
    seed: int
    out: Path | None
    as_json: bool

    @contextmanager
    def target(self, bars: Bars) -> Iterator[Target]:
        """The endpoint of --url, or an application of our own on two nodes."""
        need_charts()
        Environment.read()
        interrupt_on_sigterm()
        if self.url is None:
            with started_target(bars.say) as target:
                yield target
            return
        with running_target(
            self.url, model=self.model, api_key=self.api_key, tokenizer=self.tokenizer, address=self.address
        ) as target:
            yield target


def need_charts() -> None:
    """Raises MachineError before anything is measured if its charts could not be drawn."""
    if find_spec("matplotlib") is None:
        raise MachineError("charts need matplotlib: install the extra `bench` (pip install 'tierserve[bench]')")


def common_options(command: F) -> F:
    """Adds the options of `Common`; the function gets them as one argument, `common`."""

    def gathered(**options: Any) -> Any:
        common = Common(**{each.name: options.pop(each.name) for each in fields(Common)})
        return command(common=common, **options)

    gathered.__doc__ = command.__doc__
    gathered.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    options = [
        click.option("--url", help="Of a running OpenAI-compatible endpoint. Default: starts an application here."),
        click.option("--address", help="Of the Ray cluster of --url, if its tiers are to be measured."),
        click.option("--api-key", default="", help="For --url."),
        click.option("--model", help="Which of the endpoint's models, if it has several."),
        click.option("--tokenizer", help="Directory or Hugging Face id, if the model is not the demo model."),
        click.option("--seed", default=1, show_default=True),
        click.option(
            "--out",
            type=click.Path(file_okay=False, path_type=Path),
            help="Write charts, an HTML page, JSON and a Parquet file of every request into this directory.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ]
    for option in reversed(options):
        option(gathered)
    return gathered  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Shared:
    """Given to a command as its context's object by one that runs several against the same target."""

    target: Target
    bars: Bars


def measure(common: Common, run: Callable[[Target, Bars], BenchResult]) -> None:
    """Open the target, run, and hand the result out as the options say."""
    shared = click.get_current_context().find_object(Shared)
    if shared is not None:
        assert common.out is not None, "one of several writes files and prints nothing"
        run(shared.target, shared.bars).write(common.out)
        return
    with progress_bars() as bars, common.target(bars) as target:
        result = run(target, bars)
    hand_out(result, common.out, as_json=common.as_json)


def hand_out(result: BenchResult, out: Path | None, *, as_json: bool) -> None:
    if out is not None:
        for path in result.write(out):
            click.echo(f"wrote {path}", err=True)
    if as_json:
        click.echo(json.dumps(result.as_json()))
        return
    show(result)
    if out is None:
        click.echo("Add --out DIR for charts, an HTML page and a Parquet file of every request.")


def show(result: BenchResult) -> None:
    console = Console()
    whole = result.as_json()
    tables = list(result.tables)
    if not tables and whole["summary"]:
        tables.append(latency_table(whole["summary"]))
    if whole["goals"]:
        tables.append(goals_table(whole["goals"]))
    console.print(result.title, style="bold")
    console.print(result.environment.line(), style="dim")
    for table in tables:
        console.print(_rich(table))


def _rich(table: Table) -> RichTable:
    drawn = RichTable(title=table.title or None, title_justify="left")
    for place, head in enumerate(table.heads):
        drawn.add_column(head, justify="right" if place else "left")
    for row in table.rows:
        drawn.add_row(*row)
    return drawn


def command_line(context: click.Context) -> str:
    """The command that this is, with what differs from its defaults: for a person who wants to run it again."""
    parts = ["tierserve bench", context.command.name or ""]
    for option in context.command.params:
        assert option.name is not None
        value = context.params.get(option.name)
        if option.name in _NOT_NAMED or value in (None, False) or value == option.get_default(context):
            continue
        if value is True:
            parts.append(option.opts[0])
            continue
        for each in value if isinstance(value, tuple) else (value,):
            parts += [option.opts[0], shlex.quote(f"{each:g}" if isinstance(each, float) else str(each))]
    return " ".join(parts)
