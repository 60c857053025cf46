"""Prompts of about a wanted length that no cache has seen: made from a nonce, byte-identical for the same nonce."""

import random
from collections.abc import Callable

from cluster.probe.client import Message, Reply

_TEXT = (
    "river stone window garden letter morning captain silver forest music bridge winter candle market island thunder "
    "paper kitchen velvet harbor pencil meadow copper ladder orange whisper mountain needle ribbon shadow tunnel anchor"
)
_WORDS = _TEXT.split()
_SAMPLE = 400


def text(nonce: str, words: int) -> str:
    chooser = random.Random(nonce)
    return f"[{nonce}] " + " ".join(chooser.choice(_WORDS) for _ in range(words))


def message(nonce: str, words: int) -> list[Message]:
    return [{"role": "user", "content": text(nonce, words)}]


def tokens_per_word(ask: Callable[[list[Message]], Reply], nonce: str) -> float:
    """Measured on the model's own tokenizer, by its own count; the template's tokens cancel out."""
    short = ask(message(f"{nonce}-a", _SAMPLE)).report.prompt_tokens
    long = ask(message(f"{nonce}-b", 2 * _SAMPLE)).report.prompt_tokens
    return max(0.1, (long - short) / _SAMPLE)
