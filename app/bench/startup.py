"""`tierserve bench startup`: from the command to the first answered request, for one replica and for two."""

import json
import time
from typing import Any

import click
import httpx

from app.bench.serve_process import ServeProcess, serving
from app.openai_stream import timed_chat

# The start of a line that `tierserve serve` prints when a phase begins -> the phase's name.
_PHASES = {
    "Checking the file": "import and check",
    "Preparing the demo model": "prepare model",
    "Starting Ray": "start Ray",
    "Building the application": "build",
    "Starting the engines": "replicas and engines",
    "Ready": "first request",
}


def run(replicas: list[int]) -> dict[str, Any]:
    """One row per number of replicas. Takes about a minute each."""
    return {"runs": [_measure(count) for count in replicas]}


def _measure(count: int) -> dict[str, Any]:
    with serving({"replicas": count}) as process:
        ready_s = process.elapsed()
        with httpx.Client(timeout=120) as client:
            model = client.get(f"{process.url}/v1/models").json()["data"][0]["id"]
            body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 1}
            timed_chat(client, process.url, body)
        answered_s = process.elapsed()
    return {
        "replicas": count,
        "ready_s": round(ready_s, 2),
        "first_answer_s": round(answered_s, 2),
        "phases": _phases(process, answered_s),
    }


def _phases(process: ServeProcess, end_s: float) -> list[dict[str, Any]]:
    """What each phase took, and inside the engines' phase when each stage was first seen."""
    begun = [(at, name) for at, line in process.lines for mark, name in _PHASES.items() if line.startswith(mark)]
    ends = [at for at, _ in begun[1:]] + [end_s]
    first = [{"phase": "python and checks", "seconds": round(begun[0][0], 2)}]
    return first + [{"phase": name, "seconds": round(end - at, 2)} for (at, name), end in zip(begun, ends, strict=True)]


@click.command("startup")
@click.option("--replicas", type=int, multiple=True, default=(1, 2), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def startup(replicas: tuple[int, ...], as_json: bool) -> None:
    """Seconds from the command to the first answer, and where they go (installation excluded)."""
    started = time.perf_counter()
    result = run(list(replicas))
    if as_json:
        click.echo(json.dumps(result))
        return
    for row in result["runs"]:
        click.echo(f"{row['replicas']} replica(s): ready {row['ready_s']} s, first answer {row['first_answer_s']} s")
        for phase in row["phases"]:
            click.echo(f"  {phase['seconds']:7.2f} s  {phase['phase']}")
    click.echo(f"measured in {time.perf_counter() - started:.0f} s")
