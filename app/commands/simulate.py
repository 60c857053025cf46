"""`tierserve simulate`: the routing and retention code that serves, on a fleet that is simulated."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from app.sim import report
from app.sim.hardware import GPUS, MODELS, calibrated, speed_of
from app.sim.mixes import MIXES, mixed
from app.sim.policies import ALL
from app.sim.run import SCENARIOS, Experiment, as_measured, compare, prepare, without
from app.sim.spec import FleetSpec
from app.sim.workload import Workload, read_trace

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_SECTIONS = ("grid", "sensitivity", "mixes", "scaling")


@click.command("simulate")
@click.option("--trace", type=_FILE, help="Requests in Mooncake's format: one JSON object a line.")
@click.option("--mix", type=click.Choice(list(MIXES)), help="A synthetic workload instead of a trace.")
@click.option("--requests", default=12_000, show_default=True, help="How many of a mix.")
@click.option("--replicas", default=32, show_default=True, type=click.IntRange(1))
@click.option("--per-node", default=4, show_default=True, type=click.IntRange(1), help="Replicas that share an L1.")
@click.option(
    "--load",
    default=0.6,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Engine time that the requests need without a cache, over the fleet's time. Arrivals are scaled to it.",
)
@click.option("--policy", "policies", multiple=True, type=click.Choice(ALL), help="Repeatable; all by default.")
@click.option("--scenario", default="none", show_default=True, type=click.Choice(SCENARIOS), help="What happens.")
@click.option("--without", "gone", multiple=True, type=click.Choice(("l1", "l2")), help="Leave a tier out.")
@click.option("--gpu", default="L40S", show_default=True, type=click.Choice(list(GPUS)))
@click.option("--model", default="llama-3.1-8b", show_default=True, type=click.Choice(list(MODELS)))
@click.option("--calibrate", type=_FILE, help="Speeds from the JSON of `tierserve bench ttft` instead of the tables.")
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--write", type=_FILE, help="Run a section of docs/simulation.md and write its table into that file.")
@click.option("--section", default="grid", show_default=True, type=click.Choice(_SECTIONS), help="Which, for --write.")
def command(
    trace: Path | None,
    mix: str | None,
    requests: int,
    replicas: int,
    per_node: int,
    load: float,
    policies: Sequence[str],
    scenario: str,
    gone: Sequence[str],
    gpu: str,
    model: str,
    calibrate: Path | None,
    seed: int,
    as_json: bool,
    write: Path | None,
    section: str,
) -> None:
    """Compare routing policies on a simulated fleet: the same requests, engines and tiers for each."""
    if (trace is None) == (mix is None) and section in ("grid", "sensitivity"):
        raise click.UsageError("give either --trace FILE or --mix NAME")
    spec = FleetSpec(replicas, speed_of(gpu, model), per_node, seed=seed)
    if calibrate is not None:
        spec = as_measured(spec, calibrated(calibrate, spec.speed))
    spec = without(spec, gone)
    chosen = list(policies) or list(ALL)
    name = mix or "chat"
    workload = read_trace(trace) if trace is not None else mixed(name, MIXES[name], requests, seed=seed)
    if write is not None:
        report.write_section(write, section, _section(section, spec, workload, chosen, load, requests))
        return
    experiment = prepare(spec, workload, load, scenario)
    rows = compare(experiment, chosen, _tell)
    click.echo(json.dumps(_whole(experiment, load, scenario, rows)) if as_json else _text(experiment, rows))


def _section(
    name: str, spec: FleetSpec, workload: Workload, policies: Sequence[str], load: float, requests: int
) -> str:
    make: dict[str, Callable[[], str]] = {
        "grid": lambda: report.grid(spec, workload, policies, _tell),
        "sensitivity": lambda: report.sensitivity(spec, workload, policies, load, _tell),
        "mixes": lambda: report.mixes(spec, policies, load, requests, _tell),
        "scaling": lambda: report.scaling(spec, policies, _tell),
    }
    return make[name]()


def _tell(what: str) -> None:
    """Progress, apart from the result."""
    click.echo(f"simulating {what}", err=True)


def _whole(experiment: Experiment, load: float, scenario: str, rows: dict[str, dict[str, float]]) -> dict[str, object]:
    spec = experiment.spec
    return {
        "policies": rows,
        "workload": {
            "name": experiment.workload.name,
            "requests": experiment.totals.requests,
            "tokens": experiment.totals.tokens,
            "endless_hit_ratio": round(experiment.totals.endless_hit_ratio, 4),
            "speed_up": round(experiment.speed_up, 4),
        },
        "load": load,
        "scenario": scenario,
        "fleet": asdict(spec) | {"nodes": spec.nodes},
    }


def _text(experiment: Experiment, rows: dict[str, dict[str, float]]) -> str:
    totals = experiment.totals
    shown = ("ttft_mean_s", "ttft_p90_s", "ttft_p99_s", "hit_ratio", "hit_l0", "hit_l1", "hit_l2", "imbalance")
    lines = [
        f"{totals.requests} requests, {totals.tokens} tokens, arriving {experiment.speed_up:.3g} times as fast; "
        f"a cache without end would hit {100 * totals.endless_hit_ratio:.1f} %",
        f"{'':20}" + "".join(f"{name:>13}" for name in shown),
    ]
    lines += [f"{name:20}" + "".join(f"{row[figure]:13.4g}" for figure in shown) for name, row in rows.items()]
    return "\n".join(lines)
