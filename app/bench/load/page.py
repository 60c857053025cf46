"""One HTML page of a measurement that needs nothing else: styles and pictures are in it."""

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from app.bench.load.charts import Chart
from app.bench.load.table import Table, goals_table, latency_table

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
img { max-width: 100%; } code, pre { font: 14px/1.4 ui-monospace, monospace; background: #f4f4f4; padding: .1em .3em; }
pre { padding: .8em; overflow: auto; } p.about { color: #666; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .25rem .8rem; text-align: right; }
th { color: #666; font-weight: 600; border-bottom: 1px solid #ccc; }
td:first-child, th:first-child { text-align: left; }
"""


def page(title: str, whole: Mapping[str, Any], tables: Sequence[Table], charts: Sequence[Chart]) -> str:
    """`whole` is a result as JSON (BenchResult.as_json)."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="about">{escape(_machine(whole["environment"]))}</p>',
        f"<p><code>{escape(str(whole['command']))}</code></p>",
        *(_figure(chart) for chart in charts),
    ]
    for table in tables:
        parts += [f"<h2>{escape(table.title)}</h2>", table.html()]
    if whole["goals"]:
        parts += ["<h2>Goals</h2>", goals_table(whole["goals"]).html()]
    if whole["summary"]:
        parts += ["<h2>Latencies</h2>", latency_table(whole["summary"]).html()]
    parts += ["<h2>Settings</h2>", f"<pre>{escape(json.dumps(_settings(whole), indent=1))}</pre>"]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _figure(chart: Chart) -> str:
    data = base64.b64encode(chart.png).decode()
    return f'<p><img alt="{escape(chart.title)}" src="data:image/png;base64,{data}"></p>'


def _machine(environment: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    return f"{environment['cpu']}, {environment['cores']} cores, {environment['memory_gib']} GiB; {versions}"


def _settings(whole: Mapping[str, Any]) -> dict[str, Any]:
    return {"seed": whole["seed"], **whole["settings"]}
