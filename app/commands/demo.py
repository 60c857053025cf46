"""`tierserve demo`: the table behind `make demo`."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from app.commands.serve import DEFAULT_FILE
from app.local.quiet import quiet_ray, quiet_vllm
from app.local.record import living_runs
from app.local.run import LocalRun
from app.local.serve_file import load_serve_file

if TYPE_CHECKING:
    from app.demo import Row


@click.command("demo")
@click.option("--rounds", type=click.IntRange(1, 50), default=3, show_default=True, help="Medians are over this many.")
@click.option("--port", type=click.IntRange(1, 65535), help="If the demo has to start the application: its port.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")
def command(rounds: int, port: int | None, as_json: bool) -> None:
    """Time to first token of one long prompt: cold, from L0, from L1 of the other replica, from L2.

    Uses the run that `tierserve serve` keeps on this machine, else starts one and stops it afterwards.
    """

    def say(line: str) -> None:
        click.echo(line, err=as_json)

    with ExitStack() as stack:
        url, app_name = _running(stack, port, say)
        quiet_vllm()
        from app.demo import run_demo

        say(f"Asking {url} ...")
        quiet_ray()
        rows = run_demo(url, app_name, rounds, say)
        if as_json:
            click.echo(json.dumps({"rows": [asdict(row) for row in rows]}))
        else:
            _print_table(rows)


def _running(stack: ExitStack, port: int | None, say: Callable[[str], None]) -> tuple[str, str]:
    for record in living_runs():
        return record.url, record.name.split(",")[0]
    file = load_serve_file(Path(DEFAULT_FILE)).on_port(port)
    run = stack.enter_context(LocalRun(file, say))
    return run.url, file.applications[0].name


def _print_table(rows: "list[Row]") -> None:
    cold = rows[0].ttft_s
    table = Table(title="Time to first token, by where the prompt's tokens came from")
    for heading in ("", "TTFT", "speed-up", "L0", "L1", "L2", "computed"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        speedup = "" if row.tier == "cold" else f"{cold / row.ttft_s:.1f} x"
        counts = [f"{row.tokens[name]:,}" for name in ("l0", "l1", "l2", "computed")]
        table.add_row(row.tier.upper() if row.tier != "cold" else "cold", f"{row.ttft_s:.3f} s", speedup, *counts)
    console = Console()
    console.print(table)
    same = len({row.answer for row in rows}) == 1
    console.print(f"Answers: {'identical in all rows' if same else 'DIFFERENT'}: {rows[0].answer!r}")
