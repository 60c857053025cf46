"""`tierserve bench routing`: what routing costs per request, ours beside Ray's own, in one run on one machine.

Offline: 64 replicas, 3,000 prompts of 8,000 characters that begin with one of 50 shared prefixes of half that
length. Each figure is the median over prompts, taken in rounds that alternate between the candidates, so that a slow
moment of the machine hits all of them. Both sides start from the text: our time includes hashing it.
"""

import json
import random
import statistics
import string
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from app.routing.core import RoutingCore
from app.routing.kv_events import Batch, BlockStored
from app.routing.kv_keys import chunk_keys, pack
from app.routing.policy import Replica, Request
from app.routing.prefix_tree import PrefixTree
from app.routing.prompt import chain, read_prompt
from app.routing.roster import Roster
from app.routing.tier_index import Scope, Stored, TierBatch

REPLICAS, MANY_REPLICAS = 64, 1024
PROMPTS, CHARACTERS, PREFIXES = 3_000, 8_000, 50
ROUNDS = 6
BOUND_MB = 64
_MB = 1 << 20

Live = Callable[[], dict[str, dict[str, Any]]]
"""Measures strategies on real engines: strategy -> {ttft_mean_s, ttft_p90_s, hit_tokens, ...} (routing_live.py).
Plugged in by the command below.
"""


def run(*, live: Live | None = None, actor: bool = True, inserts: int = 1_000_000) -> dict[str, Any]:
    """All offline figures, and the live ones if a runner is given. About a minute; starts and stops a small private Ray
    unless `actor` is False.
    """
    texts = _texts(PROMPTS, CHARACTERS)
    ours = _OurTree(REPLICAS)
    trees = _in_rounds(texts, [ours, _RayTree(REPLICAS), _OurTree(MANY_REPLICAS)])
    long_text = _texts(1, 1_000_000)[0]
    long_us = statistics.median(_timed(_OurTree(REPLICAS), [long_text[at:] + long_text[:at] for at in range(15)]))
    offline = {
        "ours_us": trees[0],
        "ray_tree_us": trees[1],
        "ray_actor_us": None,
        "ours_1024_us": trees[2],
        "ours_1m_chars_us": long_us,
        "kv_aware_128k_ms": _kv_aware_us(REPLICAS, 128_000) / 1e3,
        "bound_mb": float(BOUND_MB),
        "peak_mb": _peak_mb(inserts),
    }
    detail = {
        "request_us": _request_us(texts, REPLICAS),
        "request_1024_us": _request_us(texts, MANY_REPLICAS),
        "kv_aware_us": _kv_aware_us(REPLICAS, 2_000),
        "kv_aware_1024_us": _kv_aware_us(MANY_REPLICAS, 2_000),
    }
    if actor:
        whole = _through_ray(texts)
        offline["ray_actor_us"] = whole.pop("ray_actor_us")
        detail.update(whole)
    figures: dict[str, Any] = {
        "offline": {name: value if value is None else round(value, 3) for name, value in offline.items()},
        "detail": {name: round(value, 3) for name, value in detail.items()},
    }
    if live is not None:
        figures["live"] = live()
    return figures


# --- candidates: each takes a text, does match and insert, and is timed from outside --------------------------------


class _OurTree:
    def __init__(self, replicas: int) -> None:
        roster = Roster()
        for number in range(replicas):
            roster.add(f"replica-{number}")
        self._tree, self._replicas, self._turn = PrefixTree(roster, BOUND_MB * _MB), replicas, 0

    def __call__(self, text: str) -> None:
        pieces = chain(text.encode(), 1)
        self._tree.match(pieces, float(self._turn))
        self._tree.insert(pieces, self._turn % self._replicas, float(self._turn))
        self._turn += 1


class _RayTree:
    """Ray Serve LLM's PrefixTree in process, called as its PrefixCacheAffinityRouter calls it."""

    def __init__(self, replicas: int) -> None:
        from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTree as Theirs

        self._names = [f"replica-{number}" for number in range(replicas)]
        self._tree, self._turn = Theirs(), 0
        self._tree.add_tenants(self._names, 0.0)

    def __call__(self, text: str) -> None:
        self._tree.prefix_match(text, self._names)
        self._tree.insert(text, self._names[self._turn % len(self._names)], float(self._turn))
        self._turn += 1


def _through_ray(texts: list[str]) -> dict[str, float]:
    """What needs a Ray to run in: its tree actor alone, and both routers whole (see routing_event_loop.py)."""
    from app.bench.routing_event_loop import actor_calls, event_loop_us, private_ray

    with private_ray():
        actor_us = statistics.median(_timed(actor_calls(REPLICAS), texts[:400]))
        return {"ray_actor_us": actor_us, **event_loop_us(texts, REPLICAS, ROUNDS)}


def _request_us(texts: list[str], replicas: int) -> float:
    """All that our core does for one request: read, rank, count, learn, confirm, release. The router class around it
    comes on top: see routing_event_loop.py.
    """
    core = RoutingCore(rng=random.Random(3))
    core.update_replicas([Replica(f"replica-{number}") for number in range(replicas)])
    open_: list[tuple[str, str]] = []

    def once(text: str) -> None:
        name = str(len(seen))
        seen.append(name)
        best = core.choose(Request(name, read_prompt({"model": "m", "prompt": text}))).best
        assert best is not None
        core.settled(name, best.replica)
        core.accepted(name, best.replica)
        open_.append((name, best.replica))
        if len(open_) > 4 * REPLICAS:
            core.ended(*open_.pop(0))

    seen: list[str] = []
    return statistics.median(_timed(once, texts))


def _kv_aware_us(replicas: int, length: int) -> float:
    """Ranking replicas, 8 a node, for a prompt of so many tokens that a quarter of them hold in part, block size 16."""
    rng = random.Random(4)
    # An array, as the tokenising thread hands it over; a list costs 0.7 ms more.
    tokens = array("I", (rng.randrange(100_000) for _ in range(length)))
    core = RoutingCore("kv_aware", {"chunk_tokens": 256}, rng=rng)
    core.update_replicas([Replica(f"replica-{number}", f"node-{number // 8}") for number in range(replicas)])
    for number in range(replicas):
        blocks = rng.randrange(length // 128, length // 16) if number % 4 == 0 else length // 2048
        event = BlockStored(list(range(blocks)), None, tokens[: blocks * 16].tolist(), 16, medium="GPU")
        core.engine_events(f"replica-{number}", 0, msgspec.msgpack.encode(Batch(0.0, [event])))
    chunks = chunk_keys(pack(tokens), 256)
    for number in range(replicas // 8):
        held = Stored(Scope(""), chunks[: rng.randrange(len(chunks))])
        core.tier_events("l1", TierBatch(f"node-{number}", "1", 0, 0.0, [held]))
    core.tier_events("l2", TierBatch("pool", "1", 0, 0.0, [Stored(Scope(""), chunks[: len(chunks) * 9 // 10])]))
    prompt = read_prompt({"model": "m", "prompt": tokens.tolist()})
    times = []
    for number in range(41):
        request = Request(str(number), prompt, None, tokens)
        started = time.perf_counter()
        ranking = core.choose(request)
        times.append(time.perf_counter() - started)
        assert ranking.degraded is None
        core.settled(request.id, None)
    return 1e6 * statistics.median(times)


def _peak_mb(inserts: int) -> float:
    """How much a process grows while its tree takes a million prompts: measured by the kernel, in a process of its
    own.
    """
    code = f"from app.bench.routing import grow; grow({inserts})"
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=600
    )
    return float(done.stdout)


def grow(inserts: int) -> None:
    """Insert prompts of 31 pieces, half shared, and print the growth of the resident set in MB."""
    rng = random.Random(5)
    roster = Roster()
    for number in range(REPLICAS):
        roster.add(f"replica-{number}")
    shared = [[rng.getrandbits(64) for _ in range(15)] for _ in range(PREFIXES)]
    before = _resident_mb("VmRSS")
    tree = PrefixTree(roster, BOUND_MB * _MB)
    for number in range(inserts):
        own = [rng.getrandbits(64) for _ in range(16)]
        tree.insert([*shared[number % PREFIXES], *own], number % REPLICAS, number / 1000)
    assert tree.bytes <= BOUND_MB * _MB
    tree.check_integrity()
    sys.stdout.write(f"{_resident_mb('VmHWM') - before:.1f}\n")


def _resident_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {field} in /proc/self/status")


# --- measuring ------------------------------------------------------------------------------------------------------


def _in_rounds(texts: list[str], candidates: list[Callable[[str], None]]) -> list[float]:
    """Median microseconds per text for each candidate; all see the same texts, a share of them at a time, in turn."""
    times: list[list[float]] = [[] for _ in candidates]
    share = len(texts) // ROUNDS
    for start in range(0, share * ROUNDS, share):
        for candidate, into in zip(candidates, times, strict=True):
            into += _timed(candidate, texts[start : start + share])
    return [statistics.median(one) for one in times]


def _timed(action: Callable[[str], None], texts: list[str]) -> list[float]:
    """Microseconds of each call."""
    times = []
    for text in texts:
        started = time.perf_counter()
        action(text)
        times.append(1e6 * (time.perf_counter() - started))
    return times


def _texts(count: int, length: int) -> list[str]:
    rng = random.Random(6)
    letters = string.ascii_lowercase + "      "

    def words(size: int) -> str:
        return "".join(rng.choices(letters, k=size))

    prefixes = [words(length // 2) for _ in range(min(PREFIXES, count))]
    return [prefixes[number % len(prefixes)] + words(length - length // 2) for number in range(count)]


# --- command --------------------------------------------------------------------------------------------------------


@click.command("routing")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--live", is_flag=True, help="Also measure every strategy on real engines (about 15 minutes a round).")
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="Of --live.")
@click.option("--strategy", "strategies", multiple=True, help="Of --live; may be repeated. Default: all.")
@click.option(
    "--traffic",
    type=click.Choice(["dialogues", "hot"]),
    multiple=True,
    help="Of --live: overlapping conversations, or requests under one hot prefix. Default: both.",
)
def routing(as_json: bool, live: bool, rounds: int, strategies: tuple[str, ...], traffic: tuple[str, ...]) -> None:
    """What routing costs per request, ours beside Ray's own."""
    if live:
        _check_strategies(strategies)
    figures = run(live=(lambda: _live(rounds, strategies, traffic)) if live else None)
    if as_json:
        click.echo(json.dumps(figures))
        return
    offline = figures["offline"]
    for name, value in {**offline, **figures["detail"]}.items():
        click.echo(f"{name:>20}  {value:,.1f}")
    click.echo(f"match and insert {offline['ray_tree_us'] / offline['ours_us']:.0f} times faster than Ray's tree")
    if "router_us" in (detail := figures["detail"]):
        times = detail["ray_router_us"] / detail["router_us"]
        click.echo(f"the event loop free {times:.0f} times sooner than with Ray's prefix router")
    for strategy, row in figures.get("live", {}).items():
        rounds_of = row.pop("rounds", [])
        click.echo(f"{strategy:>20}  {_spelled(row)}")
        for number, one in enumerate(rounds_of, 1):
            click.echo(f"{'round ' + str(number):>20}  {_spelled(one)}")


def _spelled(row: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:,.3f}" for name, value in row.items())


def _check_strategies(names: tuple[str, ...]) -> None:
    from app.bench.routing_live import STRATEGIES

    unknown = set(names) - set(STRATEGIES)
    if unknown:
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: choose from {', '.join(STRATEGIES)}")


def _live(rounds: int, strategies: tuple[str, ...], traffic: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    from app.bench.load import Environment, progress_bars
    from app.bench.routing_live import STRATEGIES, TRAFFIC, run_live
    from app.local.signals import interrupt_on_sigterm

    Environment.read()  # imports what would otherwise print in the middle of the progress
    interrupt_on_sigterm()
    with progress_bars() as bars:
        return run_live(rounds, bars, strategies or STRATEGIES, traffic or TRAFFIC)
