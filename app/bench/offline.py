"""Measurements that need no application, as results like those of engines: for the page that shows all."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.load import BenchResult, Environment
from app.bench.load.table import Table
from app.errors import ServingError

_WITHIN_S = 1800
Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Offline:
    """A command that prints one JSON object, and how it is read. `quick` is added where time is short."""

    command: tuple[str, ...]
    quick: tuple[str, ...]
    title: str
    note: str
    tables: Callable[[Figures], list[Table]]


def run_offline(name: str, out: Path, *, quick: bool) -> BenchResult:
    """Run the command in a process of its own. `{out}` in its arguments is where results lie.

    Raises:
        ServingError: it failed; the message is the end of what it said.
    """
    what = OFFLINE[name]
    arguments = [part.format(out=out) for part in (*what.command, *(what.quick if quick else ()))]
    command = [sys.executable, "-m", "app.cli", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S)
    if done.returncode != 0:
        raise ServingError(f"tierserve {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return BenchResult(
        name=name,
        title=what.title,
        command=" ".join(["tierserve", *arguments]),
        settings={},
        seed=1,
        environment=Environment.read(),
        figures={"found": figures},
        tables=tuple(what.tables(figures)),
        note=what.note,
    )


def _pool(found: Figures) -> list[Table]:
    heads = ("case", "load", "of fs_native", "of plain reads", "store", "of fs_native", "lookup of a key")
    rows = []
    for case in found["cases"]:
        load, store, lookup = case["load_mb_s"], case["store_mb_s"], case["lookup_ms"]
        rows.append(
            (
                f"{case['keys']} x {case['bytes'] / 2**20:g} MiB",
                f"{load['ours']:,.0f} MB/s",
                f"{load['ours'] / load['fs_native']:.2f}",
                f"{load['ours'] / load['preadv']:.2f}",
                f"{store['ours']:,.0f} MB/s",
                f"{store['ours'] / store['fs_native']:.2f}",
                f"{lookup['ours']:.4f} ms",
            )
        )
    return [Table(heads, tuple(rows), "The pool beside LMCache's adapters")]


_ROUTING = {
    "ours_us": ("our tree, 64 replicas: match and insert", "us"),
    "ray_tree_us": ("Ray's tree in process: match and insert", "us"),
    "ray_actor_us": ("Ray's tree through its actor: match and insert", "us"),
    "ours_1024_us": ("our tree, 1,024 replicas", "us"),
    "ours_1m_chars_us": ("our tree, a prompt of a million characters", "us"),
    "kv_aware_128k_ms": ("kv_aware ranks 64 replicas for 128,000 tokens", "ms"),
    "bound_mb": ("memory that the tree is bounded to", "MB"),
    "peak_mb": ("growth of a process whose tree took all inserts", "MB"),
    "request_us": ("all that our routing core does for a request, 64 replicas", "us"),
    "request_1024_us": ("the same, 1,024 replicas", "us"),
    "router_us": ("event loop's time for a request, our router class", "us"),
    "ray_router_us": ("the same, Ray's PrefixCacheAffinityRouter", "us"),
    "power_of_two_us": ("the same, Serve's default router, which keeps no prefixes", "us"),
}


def _routing(found: Figures) -> list[Table]:
    figures = {**found["offline"], **found["detail"]}
    rows = [
        (label, f"{figures[name]:,.1f} {unit}")
        for name, (label, unit) in _ROUTING.items()
        if figures.get(name) is not None
    ]
    return [Table(("what", "median"), tuple(rows), "Cost of routing a request")]


def _simulated(found: Figures) -> list[Table]:
    heads = ("policy", "TTFT mean", "TTFT p90", "hit", "busiest over mean")
    rows = [
        (
            name,
            f"{row['ttft_mean_s']:.3g} s",
            f"{row['ttft_p90_s']:.3g} s",
            f"{100 * row['hit_ratio']:.1f} %",
            f"{row['imbalance']:.2f}",
        )
        for name, row in found["policies"].items()
    ]
    return [Table(heads, tuple(rows), "Policies on a simulated fleet")]


OFFLINE: dict[str, Offline] = {
    "pool": Offline(
        ("bench", "pool"),
        ("--rounds", "3", "--no-cold", "--no-files"),
        "The L2 pool beside LMCache's own file adapters",
        "Ours checks every byte; the others do not. docs/pool.md says what each case is.",
        _pool,
    ),
    "routing": Offline(
        ("bench", "routing"),
        (),
        "What routing a request costs",
        "Prompts of 8,000 characters with shared prefixes; docs/routing.md says what each figure is.",
        _routing,
    ),
    "simulated-fleet": Offline(
        ("simulate", "--mix", "rag", "--replicas", "8"),
        ("--requests", "3000"),
        "Policies on a simulated fleet of GPUs",
        "The routing code that serves, on 8 simulated L40S; docs/simulation.md has the model and larger fleets.",
        _simulated,
    ),
    "simulated-here": Offline(
        ("simulate", "--mix", "rag", "--replicas", "8", "--calibrate", "{out}/ttft.json"),
        ("--requests", "3000"),
        "The same fleet made of this machine's engines",
        "As above, with the speeds of prefill, L1 and L2 that `tierserve bench ttft` measured here.",
        _simulated,
    ),
}
