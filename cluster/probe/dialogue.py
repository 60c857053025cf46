"""A conversation of four turns whose history grows: played on one node, then replayed on another."""

from collections.abc import Callable
from dataclasses import dataclass

from cluster.probe.client import Endpoint, Message
from cluster.probe.prompts import text
from cluster.probe.replicas import Replica

# Prompt lengths of the published setup run from 530 to 2,114 tokens.
FIRST_TOKENS, TURNS, GROWTH_TOKENS = 530, 4, 528


@dataclass(frozen=True)
class Turn:
    tokens: int
    first_s: float
    replay_s: float
    replay_hit_tokens: int


def play(
    endpoint: Endpoint,
    pair: tuple[Replica, Replica],
    nonce: str,
    per_word: float,
    pause: Callable[[float], None],
    settle_s: float = 15.0,
) -> list[Turn]:
    """The second node sees every turn for the first time; what it does not compute came from the pool."""
    histories = _histories(nonce, per_word)
    first = [endpoint.ask(history, pair[0].id) for history in histories]
    pause(settle_s)
    replay = [endpoint.ask(history, pair[1].id) for history in histories]
    return [
        Turn(a.report.prompt_tokens, round(a.seconds, 4), round(b.seconds, 4), b.report.cached_tokens)
        for a, b in zip(first, replay, strict=True)
    ]


def _histories(nonce: str, per_word: float) -> list[list[Message]]:
    """The answers in the history are fixed, so that both nodes are sent the same bytes."""
    messages: list[Message] = []
    histories = []
    for turn in range(TURNS):
        wanted = FIRST_TOKENS if turn == 0 else GROWTH_TOKENS
        messages.append({"role": "user", "content": text(f"{nonce}-turn-{turn}", round(wanted / per_word))})
        histories.append(list(messages))
        messages.append({"role": "assistant", "content": "Noted."})
    return histories
