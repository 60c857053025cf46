"""`tierserve cluster cost`: a table of plans, with the formulas behind it and where its prices come from."""

import json
from dataclasses import asdict
from typing import Any

import click
import yaml

from app.errors import ClusterError
from cluster.cost.model import FORMULAS, GIB, Load, Model, Plan, plan
from cluster.cost.prices import parse_own, prices
from cluster.files import ROOT
from cluster.instances import instance

_HEAD = [
    "instance",
    "nodes",
    "replicas x GPUs",
    "L0 tok",
    "L1 tok",
    "L2 tok",
    "hit L0",
    "hit L1",
    "hit L2",
    "$/h",
    "$/stream h",
]


@click.command("cost")
@click.option(
    "--model", "name", default="qwen2-7b", help="A name in cluster/cost/models.yaml, or any with the four numbers."
)
@click.option("--layers", type=click.IntRange(1))
@click.option("--kv-heads", type=click.IntRange(1))
@click.option("--head-dim", type=click.IntRange(1))
@click.option("--parameters", type=click.FloatRange(1), help="How many the model has, e.g. 7.62e9.")
@click.option("--context", type=click.IntRange(1), required=True, help="Tokens of a conversation, prompt and answer.")
@click.option("--concurrency", type=click.IntRange(1), required=True, help="Conversations in flight at once.")
@click.option(
    "--reuse", type=click.FloatRange(0, 1), required=True, help="Share of prompt tokens that were seen before."
)
@click.option("--working-set", type=click.IntRange(1), required=True, help="Distinct tokens among which reuse happens.")
@click.option("--utilization", type=click.FloatRange(0.1, 1), default=0.9, help="gpu_memory_utilization of vLLM.")
@click.option("--l1-share", type=click.FloatRange(0, 1), default=0.4, help="Share of host memory given to L1.")
@click.option("--l2-share", type=click.FloatRange(0, 1), default=0.7, help="Share of NVMe given to Curvine.")
@click.option("--price", "own", multiple=True, help="TYPE=USD per hour: what you pay. Repeat for each type.")
@click.option("--prices-confirmed", is_flag=True, help="Compute with the listed prices (see cluster/cost/prices.yaml).")
@click.option("--json", "as_json", is_flag=True)
def command(name: str, own: tuple[str, ...], prices_confirmed: bool, as_json: bool, **given: Any) -> None:
    """Which instances, how many, for how much: from KV bytes per token, tier capacities and reuse."""
    model = _model(name, {key: given.pop(key) for key in ("layers", "kv_heads", "head_dim", "parameters")})
    load = Load(**given)
    known = prices(parse_own(own), confirmed=prices_confirmed)
    plans = [plan(model, instance(kind), load, usd) for kind, usd in known.usd_per_hour.items()]
    fitting = sorted((p for p in plans if p is not None), key=lambda p: p.usd_per_hour)
    if not fitting:
        raise ClusterError(f"{name} with {load.context} tokens of context fits none of {', '.join(known.usd_per_hour)}")
    click.echo(_json(model, load, fitting, known.note) if as_json else _text(model, load, fitting, known.note))


def _model(name: str, given: dict[str, Any]) -> Model:
    known = yaml.safe_load((ROOT / "cost" / "models.yaml").read_text())
    facts = {key: value for key, value in known.get(name, {}).items() if key != "repository"}
    facts |= {key: value for key, value in given.items() if value is not None}
    missing = [key for key in given if key not in facts]
    if missing:
        options = ", ".join("--" + key.replace("_", "-") for key in missing)
        raise ClusterError(f"model {name} is not in models.yaml ({', '.join(known)}): give {options}")
    return Model(name=name, **facts)


def _json(model: Model, load: Load, plans: list[Plan], note: str) -> str:
    body = {
        "model": asdict(model) | {"kv_bytes_per_token": model.kv_bytes},
        "load": asdict(load),
        "plans": [asdict(p) | {"prefill_left": p.prefill_left} for p in plans],
        "prices": note,
        "formulas": FORMULAS.splitlines(),
    }
    return json.dumps(body, indent=2)


def _text(model: Model, load: Load, plans: list[Plan], note: str) -> str:
    rows = [_HEAD, *(_row(p, load) for p in plans)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    table = "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    facts = (
        f"{model.name}: weights {model.weight_bytes / GIB:.1f} GiB, KV {model.kv_bytes} bytes per token\n"
        f"{load.concurrency} conversations of {load.context} tokens, {load.reuse:.0%} of prompt tokens reused "
        f"within {load.working_set} distinct ones"
    )
    end = f"Prices: {note}\nNo speed is assumed: this is what fits, not how fast."
    return f"{facts}\n\n{table}\n\nFormulas\n{FORMULAS}\n\n{end}"


def _row(p: Plan, load: Load) -> list[str]:
    tokens = [f"{value / 1e6:.2f} M" for value in (p.l0_tokens, p.l1_tokens, p.l2_tokens)]
    hits = [f"{value:.0%}" for value in (p.hit_l0, p.hit_l1, p.hit_l2)]
    money = [f"{p.usd_per_hour:.2f}", f"{p.usd_per_stream_hour(load.concurrency):.3f}"]
    return [p.instance, str(p.nodes), f"{p.replicas} x {p.gpus_per_replica}", *tokens, *hits, *money]
