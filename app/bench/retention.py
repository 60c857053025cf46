"""`tierserve bench retention`: LRU against the score on a trace of requests, at several capacities; and what of loads
should stay in L1 (l1_retention).

The ledger and the policies are the very ones that the janitor runs; only the clock is the trace's. A request hits the
blocks from its beginning that are there without a gap, as in serving, and then stores or uses all of its blocks.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from app.bench.l1_retention import ROOMS, compare
from app.tiers.curvine.ledger import Ledger
from app.tiers.curvine.retention import Entry, Lru, Retention, Score

CAPACITIES = (1_000, 3_000, 10_000, 30_000, 60_000)
BLOCK_TOKENS = 512
_HIGH, _LOW = 0.95, 0.85


class NaiveLru(Lru):
    """LRU as it is usually done: of blocks used at one moment the first of the prompt goes first."""

    name = "lru, beginning first"

    def value(self, entry: Entry, now: float) -> tuple[float, ...]:
        return (entry.last, entry.depth)


POLICIES: tuple[type[Retention], ...] = (NaiveLru, Lru, Score)


@dataclass(frozen=True, slots=True)
class Request:
    """Seconds from the start, tokens of the prompt, and the names of its blocks of 512 tokens."""

    at: float
    tokens: int
    blocks: tuple[int, ...]


def read_trace(path: Path) -> Iterator[Request]:
    """Mooncake's format: a JSON object a line with `timestamp` in milliseconds, `input_length` and `hash_ids`."""
    with path.open() as lines:
        for line in lines:
            row = json.loads(line)
            yield Request(row["timestamp"] / 1000, row["input_length"], tuple(row["hash_ids"]))


def hit_rate(requests: Iterable[Request], retention: Retention, capacity: int) -> float:
    """The share of all prompt tokens that the pool had, with room for `capacity` blocks."""
    ledger = Ledger(retention)
    hit = total = 0
    for request in requests:
        total += request.tokens
        gap = False
        for depth, block in enumerate(request.blocks):
            gap = gap or f"trace/{block}" not in ledger
            if not gap:
                hit += min(BLOCK_TOKENS, request.tokens - BLOCK_TOKENS * depth)
        for depth, block in enumerate(request.blocks):
            ledger.stored("trace", str(block), 1, depth, request.at)
        if ledger.bytes > _HIGH * capacity:
            for entry in ledger.victims(ledger.bytes - int(_LOW * capacity), request.at):
                ledger.gone(entry.name)
    ledger.check_integrity()
    return hit / total if total else 0.0


def run(trace: Path, capacities: Sequence[int] = CAPACITIES, l1_rooms: Sequence[int] = ROOMS) -> dict[str, Any]:
    """One row a capacity: blocks, and the hit rate of each policy in per cent. And one a size of L1: blocks loaded."""
    requests = list(read_trace(trace))
    rows = [
        {"blocks": capacity, **{kind.name: round(100 * hit_rate(requests, kind(), capacity), 2) for kind in POLICIES}}
        for capacity in capacities
    ]
    l1 = compare([request.blocks for request in requests], l1_rooms)
    return {"trace": trace.name, "requests": len(requests), "rows": rows, "l1": l1}


@click.command("retention")
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def retention(trace: Path, as_json: bool) -> None:
    """Compare what LRU and the score keep in the pool, and what rules keep in L1, on a trace in Mooncake's format."""
    result = run(trace)
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return
    click.echo("Per cent of prompt tokens hit, by the pool's room:")
    _show(result["rows"])
    click.echo("\nBlocks loaded from an endless L2 by four nodes in turn, by the room of each one's L1:")
    _show(result["l1"])


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    click.echo("\t".join(rows[0]))
    for row in rows:
        click.echo("\t".join(str(value) for value in row.values()))
