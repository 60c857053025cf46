"""Tables of results as Markdown, written into a page between marks, so that no figure is typed by hand."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from app.errors import SettingsError
from app.sim.mixes import MIXES, mixed
from app.sim.policies import OURS
from app.sim.run import SCENARIOS, Experiment, compare, prepare
from app.sim.spec import FleetSpec
from app.sim.workload import Workload

Rows = dict[str, dict[str, float]]
Tell = Callable[[str], None]
GRID_REPLICAS, GRID_LOADS = (8, 32, 128), (0.3, 0.6, 0.9)
SCALING_REPLICAS, SCALING_REQUESTS = (8, 32, 128, 512, 1024), 20_000
TOLERANCE, HIT_SHARE = 1.02, 0.95
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
            cells[replicas, load] = compare(
                experiment, policies, lambda name, cell=(replicas, load): tell(f"{cell[0]} at {cell[1]}: {name}")
            )
    parts = [f"Mean / p90 TTFT in seconds, of {workload.name}.", "", _grid_table(cells, policies, _ttft)]
    parts += ["", f"Hit ratio in per cent; a cache without end: {100 * endless:.1f}.", ""]
    parts += [_grid_table(cells, policies, _hit), "", "Busiest replica over the mean.", ""]
    parts += [_grid_table(cells, policies, lambda row: f"{row['imbalance']:.2f}"), "", verdict(cells, endless)]
    return "\n".join(parts)


def verdict(cells: dict[tuple[int, float], Rows], endless: float) -> str:
    """Which goals are met in which cells, in figures."""
    lines = ["What the cells say of the goals:", ""]
    for (replicas, load), rows in cells.items():
        said = []
        for figure in ("ttft_mean_s", "ttft_p90_s"):
            best = min(rows, key=lambda name: rows[name][figure])
            for ours in AFFINE:
                if ours in rows and rows[ours][figure] > TOLERANCE * rows[best][figure]:
                    ratio = rows[ours][figure] / rows[best][figure]
                    said.append(f"{ours} {figure} is {100 * (ratio - 1):.1f} % above {best}")
            if best != "kv_aware" and "kv_aware" in rows:
                ratio = rows["kv_aware"][figure] / max(1e-9, rows[best][figure])
                said.append(f"best {figure} is {best}'s (kv_aware {100 * (ratio - 1):.1f} % more)")
        hit = rows["kv_aware"]["hit_ratio"] / endless if "kv_aware" in rows and endless else 1.0
        said.append(
            f"kv_aware hits {100 * hit:.1f} % of the endless cache's" + ("" if hit >= HIT_SHARE else " (goal 95)")
        )
        lines.append(f"- {replicas} replicas, load {load}: " + "; ".join(dict.fromkeys(said)))
    return "\n".join(lines)


def sensitivity(spec: FleetSpec, workload: Workload, policies: Sequence[str], load: float, tell: Tell) -> str:
    """Each scenario beside nothing happening."""
    rows = []
    for scenario in SCENARIOS:
        found = compare(
            prepare(spec, workload, load, scenario), policies, lambda name, of=scenario: tell(f"{of}: {name}")
        )
        rows.append([scenario, *(f"{_ttft(found[name])}, {_hit(found[name])} %" for name in policies)])
    lead = f"{spec.replicas} replicas at load {load}: mean / p90 TTFT in seconds, hit ratio in per cent."
    return f"{lead}\n\n{table(['what happens', *policies], rows)}"


def mixes(spec: FleetSpec, policies: Sequence[str], load: float, requests: int, tell: Tell) -> str:
    rows = []
    for name, mix in MIXES.items():
        experiment = prepare(spec, mixed(name, mix, requests, seed=spec.seed), load)
        found = compare(experiment, policies, lambda policy, of=name: tell(f"{of}: {policy}"))
        rows.append([name, *(f"{_ttft(found[policy])}, {_hit(found[policy])} %" for policy in policies)])
    parameters = "\n".join(f"- `{mix!r}`" for mix in MIXES.values())
    lead = f"{spec.replicas} replicas at load {load}, {requests} requests: mean / p90 TTFT in seconds, hit ratio in per cent."
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
