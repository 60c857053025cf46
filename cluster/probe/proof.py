"""The proof: what one node computed, another reads from the pool, completely."""

from collections.abc import Callable
from dataclasses import dataclass

from cluster.probe.client import Endpoint, Reply
from cluster.probe.prompts import message
from cluster.probe.replicas import Replica

# Stores to L2 run behind the answer. The second request is sent once after each of these pauses, with a new prompt each
# time: once a node has loaded a prompt it has it, and asking again would prove nothing.
PAUSES_S = (2.0, 5.0, 15.0, 45.0)


@dataclass(frozen=True)
class Row:
    """One prompt: computed by the first replica, loaded by the second, found again by the second."""

    tokens: int
    full_chunk_tokens: int
    hit_tokens: int
    l0_tokens: int
    l2_tokens: int
    cold_s: float
    l2_s: float
    l0_s: float
    pause_s: float

    @property
    def complete(self) -> bool:
        """Every full chunk came from L2; of the first, the head may be in L0 (the chat template is the same in all)."""
        return self.l0_tokens + self.l2_tokens >= self.full_chunk_tokens > 0


def full_chunks(tokens: int, chunk_tokens: int) -> int:
    """Tokens in full chunks that can be hit: the last token of a prompt is always computed."""
    return (tokens - 1) // chunk_tokens * chunk_tokens


def measure(
    endpoint: Endpoint,
    pair: tuple[Replica, Replica],
    chunk_tokens: int,
    nonce: str,
    words: int,
    pause: Callable[[float], None],
) -> Row:
    """Try with growing pauses until all full chunks come from L2; returns the last try, complete or not."""
    rows = []
    for number, seconds in enumerate(PAUSES_S):
        rows.append(_try(endpoint, pair, chunk_tokens, f"{nonce}-{number}", words, seconds, pause))
        if rows[-1].complete:
            break
    return rows[-1]


def _try(
    endpoint: Endpoint,
    pair: tuple[Replica, Replica],
    chunk_tokens: int,
    nonce: str,
    words: int,
    seconds: float,
    pause: Callable[[float], None],
) -> Row:
    prompt = message(nonce, words)
    cold = endpoint.ask(prompt, pair[0].id)
    pause(seconds)
    loaded = endpoint.ask(prompt, pair[1].id)
    again = endpoint.ask(prompt, pair[1].id)
    return _row(cold, loaded, again, chunk_tokens, seconds)


def _row(cold: Reply, loaded: Reply, again: Reply, chunk_tokens: int, seconds: float) -> Row:
    report = loaded.report
    # Not attributed in time: then what was loaded is known, but not from where.
    l2 = report.l2 if report.l2 is not None else 0
    full = full_chunks(report.prompt_tokens, chunk_tokens)
    return Row(
        tokens=report.prompt_tokens,
        full_chunk_tokens=full,
        hit_tokens=report.cached_tokens,
        l0_tokens=report.l0,
        l2_tokens=l2,
        cold_s=round(cold.seconds, 4),
        l2_s=round(loaded.seconds, 4),
        l0_s=round(again.seconds, 4),
        pause_s=seconds,
    )
