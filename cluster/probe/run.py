"""One run of the probe, and its report as plain data."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from cluster.probe.client import Endpoint, Message, Reply
from cluster.probe.dialogue import play
from cluster.probe.prompts import tokens_per_word
from cluster.probe.proof import measure
from cluster.probe.replicas import Replica, pair

# The published sweep; the proof alone uses the longest of it.
LENGTHS = (500, 1000, 1500, 2000, 2500, 3000)
PROOF_TOKENS = 2000


@dataclass(frozen=True)
class Plan:
    chunk_tokens: int
    nonce: str
    bench: bool


def run(endpoint: Endpoint, replicas: list[Replica], plan: Plan, pause: Callable[[float], None]) -> dict[str, Any]:
    """Raises ClusterError when a request fails; an incomplete proof is not an error here but a fact in the report."""
    both = pair(replicas)

    def ask(messages: list[Message]) -> Reply:
        return endpoint.ask(messages, both[0].id)

    per_word = tokens_per_word(ask, f"{plan.nonce}-scale")

    def row(name: str, tokens: int) -> dict[str, Any]:
        words = round(tokens / per_word)
        return asdict(measure(endpoint, both, plan.chunk_tokens, f"{plan.nonce}-{name}", words, pause))

    report: dict[str, Any] = {
        "model": endpoint.model,
        "chunk_tokens": plan.chunk_tokens,
        "pair": [asdict(replica) for replica in both],
        "proof": row("proof", max(PROOF_TOKENS, 4 * plan.chunk_tokens)),
    }
    if plan.bench:
        report["ttft"] = [row(f"sweep-{tokens}", tokens) for tokens in LENGTHS]
        report["dialogue"] = [asdict(turn) for turn in play(endpoint, both, f"{plan.nonce}-talk", per_word, pause)]
    return report
