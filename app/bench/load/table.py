"""A table of a result: the same one on a terminal, in the HTML page and in the docs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text as it is to be read, units included. The first column names the row."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    def markdown(self) -> str:
        lines = ["| " + " | ".join(self.heads) + " |", "|---|" + "---:|" * (len(self.heads) - 1)]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join(lines)

    def html(self) -> str:
        head = "".join(f"<th>{escape(each)}</th>" for each in self.heads)
        rows = ("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in self.rows)
        return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{''.join(rows)}</tbody></table>"


def number(value: float | None, form: str = "{:.3f}") -> str:
    """Nothing where nothing was measured."""
    return "" if value is None else form.format(value)


def times(ratio: float | None) -> str:
    return number(ratio, "{:.1f} x")


def goals_table(goals: Sequence[Mapping[str, Any]]) -> Table:
    """From a result's JSON."""
    rows = [
        (goal["name"], goal["target"], number(goal["measured"], "{:.4g}"), "met" if goal["met"] else "missed")
        for goal in goals
    ]
    return Table(("goal", "target", "measured", "verdict"), tuple(rows), "Goals")


_LATENCIES = (
    ("TTFT p50", "ttft_s", "median"),
    ("TTFT p90", "ttft_s", "p90"),
    ("TTFT p99", "ttft_s", "p99"),
    ("ITL p50", "itl_s", "median"),
    ("E2E p50", "e2e_s", "median"),
    ("E2E p90", "e2e_s", "p90"),
)


def latency_table(summaries: Mapping[str, Any]) -> Table:
    """From a result's JSON: a row for each summary."""
    rows = []
    for name, each in summaries.items():
        cells = [number((each[figure] or {}).get(part), "{:.3f} s") for _, figure, part in _LATENCIES]
        goodput = number(each["goodput_rps"], "{:.2f}/s")
        rows.append((name, str(each["requests"]), str(each["failed"]), *cells, goodput))
    heads = ("", "requests", "failed", *(head for head, _, _ in _LATENCIES), "goodput")
    return Table(heads, tuple(rows), "Latencies")
