"""The demo: one prompt of about 2,000 tokens, answered cold, from L0, from the other replica's L1, and from L2.

Each round uses a cache salt of its own, so that nothing of an earlier one can be hit and the first row is really cold:

    cold   replica A, nothing anywhere
    l0     replica A again: in the engine's own blocks
    l1     replica B: what A computed lies in the node's L1
    l2     replica A, after its L0 and the node's L1 were emptied: only the pool has it
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx

from app.cache_report import REPLICA_HEADER, CacheReport
from app.client import Client, connect
from app.errors import ServingError
from app.openai_stream import TimedAnswer, timed_chat

PROMPT = Path(__file__).parent / "data" / "demo_prompt.txt"
TIERS = ("cold", "l0", "l1", "l2")
_MAX_TOKENS = 24
_STORED_WITHIN_S = 60.0


@dataclass(frozen=True)
class Row:
    """One tier's row: the median time to first token over the rounds, in seconds, and what all rounds agreed on."""

    tier: str
    ttft_s: float
    tokens: dict[str, int]
    answer: str


def run_demo(url: str, app_name: str, rounds: int, say: Callable[[str], None]) -> list[Row]:
    """Measure against the running application at `url`, which must have two replicas on one node and routing.debug on.

    Raises:
        ServingError: it has not, or its tiers do not report what a row is about.
    """
    client = connect(app_name)
    first, second = two_replicas(client)
    with httpx.Client(timeout=300) as http:
        demo = _Demo(http, url, client, first, second)
        demo.warm_up()
        measured = []
        for number in range(1, rounds + 1):
            say(f"  round {number} of {rounds} ...")
            measured.append(demo.round())
    return [_row(tier, [each[tier] for each in measured]) for tier in TIERS]


def two_replicas(client: Client) -> tuple[str, str]:
    replicas = (client.cache_status()["cache"] or {}).get("replicas", [])
    if len(replicas) < 2:
        raise ServingError("the demo needs two replicas on one node with L1 on: serve serve_configs/local.yaml")
    return replicas[0], replicas[1]


class _Demo:
    def __init__(self, http: httpx.Client, url: str, client: Client, first: str, second: str) -> None:
        self._http, self._url, self._client, self._first, self._second = http, url, client, first, second
        self._prompt = PROMPT.read_text()

    def warm_up(self) -> None:
        """An engine's first request pays for what it sets up once: not what the demo is about."""
        for replica in (self._first, self._second):
            self._ask("Say hello.", uuid4().hex, replica)

    def round(self) -> dict[str, TimedAnswer]:
        salt = uuid4().hex
        answers = {"cold": self._ask(self._prompt, salt, self._first)}
        wait_until_stored(self._client)
        answers["l0"] = self._ask(self._prompt, salt, self._first)
        answers["l1"] = self._ask(self._prompt, salt, self._second)
        wait_until_stored(self._client)
        for replica in (self._first, self._second):
            self._client.on_replica(replica).clear_caches()
        answers["l2"] = self._ask(self._prompt, salt, self._first)
        return answers

    def _ask(self, prompt: str, salt: str, replica: str) -> TimedAnswer:
        body = {
            "model": self._client.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": _MAX_TOKENS,
            "temperature": 0,
            "cache_salt": salt,
        }
        return timed_chat(self._http, self._url, body, {REPLICA_HEADER: replica})


def wait_until_stored(client: Client) -> None:
    """Stores into L2 go on behind the answer: wait until none is pending on the node of the replica that is asked.

    Raises:
        ServingError: they do not end.
    """
    deadline = time.monotonic() + _STORED_WITHIN_S
    while (client.cache_status()["cache"] or {}).get("l2_stores_pending", 0):
        if time.monotonic() > deadline:
            raise ServingError(f"L2 did not take the chunks within {_STORED_WITHIN_S:.0f} s: see `tierserve status`")
        time.sleep(0.05)


def _row(tier: str, answers: list[TimedAnswer]) -> Row:
    reports = {_tokens(answer.report) for answer in answers}
    texts = {answer.text for answer in answers}
    if len(reports) != 1 or len(texts) != 1:
        raise ServingError(f"rounds disagree in row {tier}: tokens {sorted(reports)}, answers {sorted(texts)}")
    tokens = dict(reports.pop())
    if tier != "cold" and not tokens[tier]:
        raise ServingError(f"nothing came from {tier} in its row ({tokens}): see `tierserve status`")
    return Row(tier, statistics.median(answer.ttft_s for answer in answers), tokens, texts.pop())


def _tokens(report: CacheReport | None) -> tuple[tuple[str, int], ...]:
    if report is None or report.l1 is None or report.l2 is None:
        raise ServingError("the application sent no complete cache report: is another server listening there?")
    return (("l0", report.l0), ("l1", report.l1), ("l2", report.l2), ("computed", report.computed))
