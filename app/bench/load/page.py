"""One HTML page of a measurement that needs nothing else: styles and pictures are in it."""

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from app.bench.load.charts import Chart

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
img { max-width: 100%; } code, pre { font: 14px/1.4 ui-monospace, monospace; background: #f4f4f4; padding: .1em .3em; }
pre { padding: .8em; overflow: auto; } p.about { color: #666; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .25rem .8rem; text-align: right; }
th { color: #666; font-weight: 600; border-bottom: 1px solid #ccc; }
td:first-child, th:first-child { text-align: left; }
.met { color: #00734f; } .missed { color: #b34700; font-weight: 600; }
"""
Rows = Sequence[Sequence[str]]


def page(title: str, whole: Mapping[str, Any], charts: Sequence[Chart]) -> str:
    """`whole` is a result as JSON (BenchResult.as_json)."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="about">{escape(_machine(whole["environment"]))}</p>',
        f"<p><code>{escape(str(whole['command']))}</code></p>",
        *(_figure(chart) for chart in charts),
    ]
    if whole["goals"]:
        parts += ["<h2>Goals</h2>", _goals(whole["goals"])]
    if whole["summary"]:
        parts += ["<h2>Latencies</h2>", _latencies(whole["summary"])]
    figures = {name: value for name, value in whole.items() if name not in _SHOWN}
    parts += ["<h2>Figures</h2>", f"<pre>{escape(json.dumps(figures, indent=1))}</pre>"]
    parts += ["<h2>Settings</h2>", f"<pre>{escape(json.dumps(_settings(whole), indent=1))}</pre>"]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


_SHOWN = ("goals", "summary", "environment", "settings", "command", "seed")


def html_table(heads: Sequence[str], rows: Rows) -> str:
    """Cells are HTML already."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _figure(chart: Chart) -> str:
    data = base64.b64encode(chart.png).decode()
    return f'<p><img alt="{escape(chart.title)}" src="data:image/png;base64,{data}"></p>'


def _goals(goals: Sequence[Mapping[str, Any]]) -> str:
    def verdict(goal: Mapping[str, Any]) -> str:
        return '<span class="met">met</span>' if goal["met"] else '<span class="missed">missed</span>'

    rows = [
        [escape(goal["name"]), escape(goal["target"]), _number(goal["measured"], "{:.4g}"), verdict(goal)]
        for goal in goals
    ]
    return html_table(["goal", "target", "measured", ""], rows)


def _latencies(summaries: Mapping[str, Any]) -> str:
    heads = ["", "requests", "failed", "TTFT p50", "TTFT p90", "TTFT p99", "ITL p50", "E2E p50", "E2E p90", "goodput/s"]
    rows = []
    for name, each in summaries.items():
        ttft, itl, e2e = (each[figure] or {} for figure in ("ttft_s", "itl_s", "e2e_s"))
        times = [
            ttft.get("median"),
            ttft.get("p90"),
            ttft.get("p99"),
            itl.get("median"),
            e2e.get("median"),
            e2e.get("p90"),
        ]
        cells = [_number(value, "{:.3f} s") for value in times]
        rows.append(
            [escape(name), str(each["requests"]), str(each["failed"]), *cells, _number(each["goodput_rps"], "{:.2f}")]
        )
    return html_table(heads, rows)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _machine(environment: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    return f"{environment['cpu']}, {environment['cores']} cores, {environment['memory_gib']} GiB; {versions}"


def _settings(whole: Mapping[str, Any]) -> dict[str, Any]:
    return {"seed": whole["seed"], **whole["settings"]}
