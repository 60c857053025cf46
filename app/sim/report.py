"""Tables of results as Markdown, written into a page between marks, so that no figure is typed by hand."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from app.errors import SettingsError
from app.sim.mixes import MIXES, mixed
from app.sim.policies import OURS
from app.sim.run import SCENARIOS, Experiment, best_of, compare, prepare
from app.sim.spec import FleetSpec
from app.sim.workload import Workload

Rows = dict[str, dict[str, float]]
Tell = Callable[[str], None]
GRID_REPLICAS, GRID_LOADS = (8, 32, 128), (0.3, 0.6, 0.9)
SCALING_REPLICAS, SCALING_REQUESTS = (8, 32, 128, 512, 1024), 5_000
_FIGURES = ("ttft_mean_s", "ttft_p90_s")
AFFINE = tuple(name for name in OURS if name != "round_robin")
"""Ours apart from the baseline among them."""


def write_section(page: Path, name: str, text: str) -> None:
    """Replace what is between the marks of this section. Raises SettingsError if the page has no such marks."""
    marks = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    content = page.read_text()
    if not marks.search(content):
        raise SettingsError(f"{page} has no marks `<!-- begin {name} -->` and `<!-- end {name} -->`")
    page.write_text(marks.sub(lambda found: f"{found[1]}{text}\n{found[2]}", content))


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def grid(spec: FleetSpec, workload: Workload, policies: Sequence[str], tell: Tell) -> str:
    """All cells, and what they say of the goals."""
    cells: dict[tuple[int, float], Rows] = {}
    endless = 0.0
    for replicas in GRID_REPLICAS:
        for load in GRID_LOADS:
            experiment = prepare(replace(spec, replicas=replicas), workload, load)
            endless = experiment.totals.endless_hit_ratio
            tell_cell = _before(f"{replicas} at {load}", tell)
            cells[replicas, load] = compare(experiment, policies, tell_cell)
    parts = [f"Mean / p90 TTFT in seconds, of {workload.name}.", "", _grid_table(cells, policies, _ttft)]
    parts += ["", f"Hit ratio in per cent; a cache without end: {100 * endless:.1f}.", ""]
    parts += [_grid_table(cells, policies, _hit), "", "Busiest replica over the mean.", ""]
    parts += [_grid_table(cells, policies, lambda row: f"{row['imbalance']:.2f}"), "", verdict(cells, endless)]
    return "\n".join(parts)


def verdict(cells: dict[tuple[int, float], Rows], endless: float) -> str:
    """Each of ours beside the best of the peers in each cell, and kv_aware's hits beside a cache without end."""
    heads = [
        "cell",
        "best of all, mean / p90",
        "best peer, mean",
        *(f"{name}, mean / p90" for name in AFFINE),
        "kv_aware's share of endless hits",
    ]
    lines = []
    for (replicas, load), rows in cells.items():
        peers = [name for name in rows if name not in AFFINE]
        mean, p90 = (min(rows[name][figure] for name in peers) for figure in _FIGURES)
        first = " / ".join(best_of(rows, figure, rows) for figure in _FIGURES)
        best = best_of(rows, "ttft_mean_s", peers)
        against = [
            f"{_more(rows[ours]['ttft_mean_s'], mean)} / {_more(rows[ours]['ttft_p90_s'], p90)}" for ours in AFFINE
        ]
        share = rows["kv_aware"]["hit_ratio"] / endless if endless else 1.0
        lines.append([f"{replicas} × {load}", first, best, *against, f"{100 * share:.1f} %"])
    lead = "Ours over the best peer of the same cell, in per cent: negative is faster."
    return f"{lead}\n\n{table(heads, lines)}"


def _more(one: float, other: float) -> str:
    return f"{100 * (one / max(1e-9, other) - 1):+.1f}"


def sensitivity(spec: FleetSpec, workload: Workload, policies: Sequence[str], load: float, tell: Tell) -> str:
    """Each scenario beside nothing happening."""
    rows = []
    for scenario in SCENARIOS:
        found = compare(prepare(spec, workload, load, scenario), policies, _before(scenario, tell))
        rows.append([scenario, *(f"{_ttft(found[name])}, {_hit(found[name])} %" for name in policies)])
    lead = f"{spec.replicas} replicas at load {load}: mean / p90 TTFT in seconds, hit ratio in per cent."
    return f"{lead}\n\n{table(['what happens', *policies], rows)}"


def mixes(spec: FleetSpec, policies: Sequence[str], load: float, requests: int, tell: Tell) -> str:
    rows = []
    for name, mix in MIXES.items():
        experiment = prepare(spec, mixed(name, mix, requests, seed=spec.seed), load)
        found = compare(experiment, policies, _before(name, tell))
        rows.append([name, *(f"{_ttft(found[policy])}, {_hit(found[policy])} %" for policy in policies)])
    parameters = "\n".join(f"- `{mix!r}`" for mix in MIXES.values())
    fleet = f"{spec.replicas} replicas at load {load}, {requests} requests"
    lead = f"{fleet}: mean / p90 TTFT in seconds, hit ratio in per cent."
    return f"{lead}\n\n{table(['mix', *policies], rows)}\n\nThe mixes:\n\n{parameters}"


def scaling(
    spec: FleetSpec, policies: Sequence[str], tell: Tell, clock: Callable[[], float] = time.process_time
) -> str:
    """Processor time per simulated request by size of fleet: of this machine, and of the whole simulation."""
    rows = []
    for replicas in SCALING_REPLICAS:
        row: list[object] = [replicas]
        workload = mixed("chat", MIXES["chat"], SCALING_REQUESTS, seed=spec.seed)
        experiment = prepare(replace(spec, replicas=replicas), workload, 0.6)
        for name in policies:
            tell(f"{replicas}: {name}")
            row.append(f"{1e3 * _cost_s(experiment, name, clock):.2f}")
        rows.append(row)
    lead = f"Milliseconds of processor time per request, {SCALING_REQUESTS} requests of the chat mix at load 0.6."
    return f"{lead}\n\n{table(['replicas', *policies], rows)}"


def _before(what: str, tell: Tell) -> Tell:
    return lambda name: tell(f"{what}: {name}")


def _cost_s(experiment: Experiment, policy: str, clock: Callable[[], float]) -> float:
    began = clock()
    experiment.run(policy)
    return (clock() - began) / experiment.totals.requests


def _grid_table(
    cells: dict[tuple[int, float], Rows], policies: Sequence[str], show: Callable[[dict[str, float]], str]
) -> str:
    heads = ["policy", *(f"{replicas} × {load}" for replicas, load in cells)]
    return table(heads, [[name, *(show(rows[name]) for rows in cells.values())] for name in policies])


def _ttft(row: dict[str, float]) -> str:
    return f"{row['ttft_mean_s']:.3g} / {row['ttft_p90_s']:.3g}"


def _hit(row: dict[str, float]) -> str:
    return f"{100 * row['hit_ratio']:.1f}"
