"""`tierserve bench chunks`: what the chunk size costs and saves, on real engines.

Every hit prefills again what is behind the last full chunk: with 256 tokens a chunk that is 128 tokens on average,
with 64 it is 32. Smaller chunks mean more of them to look up, copy and store. One application per size.
"""

import json
import statistics
from typing import Any
from uuid import uuid4

import click
import httpx

from app.bench.serve_process import ServeProcess, serving
from app.cache_report import REPLICA_HEADER
from app.demo import PROMPT, two_replicas, wait_until_stored
from app.openai_stream import TimedAnswer, timed_chat

# Characters of the demo prompt: about 500, 1,000, 1,500 and 2,000 tokens, whose tails differ at every chunk size.
_LENGTHS = (2300, 4300, 6350, 8400)


def run(sizes: list[int], rounds: int) -> dict[str, Any]:
    """One row per chunk size: medians over lengths and rounds of time to first token, and what hits left to compute."""
    return {"chunks": [_measure(size, rounds) for size in sizes]}


def _measure(size: int, rounds: int) -> dict[str, Any]:
    with serving({"l1": {"gib": 1, "chunk_tokens": size}}) as process, httpx.Client(timeout=300) as http:
        answers = _Rounds(process, http).measure(rounds)
    l1 = [answer for each in answers for answer in [each["l1"]]]
    tails = [answer.report.computed for answer in l1 if answer.report is not None]
    return {
        "chunk_tokens": size,
        **{f"{tier}_s": round(statistics.median(each[tier].ttft_s for each in answers), 3) for tier in answers[0]},
        "computed_on_hit": round(statistics.mean(tails), 1),
    }


class _Rounds:
    """Asks each length cold, from the other replica's L1, and from L2, each time under a salt of its own."""

    def __init__(self, process: ServeProcess, http: httpx.Client) -> None:
        from app.client import connect

        self._url, self._http = process.url, http
        self._client = connect(process.app_name)
        self._first, self._second = two_replicas(self._client)
        for replica in (self._first, self._second):
            self._ask("Say hello.", uuid4().hex, replica)

    def measure(self, rounds: int) -> list[dict[str, TimedAnswer]]:
        import ray

        text = PROMPT.read_text()
        try:
            return [self._once(text[:length]) for _ in range(rounds) for length in _LENGTHS]
        finally:
            ray.shutdown()

    def _once(self, prompt: str) -> dict[str, TimedAnswer]:
        salt = uuid4().hex
        cold = self._ask(prompt, salt, self._first)
        wait_until_stored(self._client)
        l1 = self._ask(prompt, salt, self._second)
        wait_until_stored(self._client)
        for replica in (self._first, self._second):
            self._client.on_replica(replica).clear_caches()
        return {"cold": cold, "l1": l1, "l2": self._ask(prompt, salt, self._second)}

    def _ask(self, prompt: str, salt: str, replica: str) -> TimedAnswer:
        body = {"model": self._client.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 1}
        return timed_chat(self._http, self._url, {**body, "cache_salt": salt}, {REPLICA_HEADER: replica})


@click.command("chunks")
@click.option("--size", "sizes", type=int, multiple=True, default=(32, 64, 128, 256), show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def chunks(sizes: tuple[int, ...], rounds: int, as_json: bool) -> None:
    """Time to first token cold, from L1 and from L2, by chunk size (one application start per size)."""
    result = run(list(sizes), rounds)
    if as_json:
        click.echo(json.dumps(result))
        return
    for row in result["chunks"]:
        click.echo(
            f"{row['chunk_tokens']:4d} tokens a chunk: cold {row['cold_s']:.3f} s, L1 {row['l1_s']:.3f} s, "
            f"L2 {row['l2_s']:.3f} s, {row['computed_on_hit']:.0f} tokens computed on a hit"
        )
