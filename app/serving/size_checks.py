"""How much one request may ask for: what takes an engine, or the thread that tokenises for it, from all others is
refused. Pure. The figures are of two cores and a model of 135 million parameters; bounds are where others' are, or far
above what answers need.
"""

from collections.abc import Sequence
from typing import Any, Final

from app.serving.field_error import FieldError
from app.serving.plain_data import inner

MAX_CHOICES: Final = 128
"""OpenAI's bound on `n`. vLLM's own is 16,384, each an answer of its own."""
MAX_SEQUENCES: Final = 2048
"""Prompts of one request times `n`; OpenAI takes as many inputs, vLLM 1,024 prompts with any `n`. 1,024 of one token
each kept others waiting for 28 s, 131,072 for more than 40, after their client had left."""
MAX_BAD_WORDS: Final = 20_000
"""Characters, all words together: vLLM tokenises them on the event loop (30 MB: a replica that answered no health
check)."""
MAX_TOKENS: Final = 1_000_000
"""To be made text of: a fifth of what kept a replica's event loop for four seconds."""
MAX_BATCH: Final = 5_000_000
"""Characters of a batch that is cut after it was tokenised: 40 million kept the others waiting for 82 s."""
MAX_MESSAGES: Final = 10_000
"""300,000 are validated for 13 s on an event loop."""
BATCHES = ("prompt", "input", "text_1", "text_2", "queries", "documents", "data_1", "data_2")
_TEXTS = ("messages", "tools", *BATCHES)


def check_sizes(body: Any) -> None:
    """Raises FieldError: 400, with the field and its bound."""
    n = getattr(body, "n", None)
    choices = n if isinstance(n, int) else 1
    if choices > MAX_CHOICES:
        raise FieldError("n", f"at most {MAX_CHOICES} choices, not {choices}.")
    for field in BATCHES:
        sequences = _prompts(getattr(body, field, None)) * max(choices, 1)
        if sequences > MAX_SEQUENCES:
            raise FieldError(field, f"at most {MAX_SEQUENCES} prompts times `n` in one request, not {sequences}.")
    messages = getattr(body, "messages", None)
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise FieldError("messages", f"at most {MAX_MESSAGES} messages, not {len(messages)}.")
    characters = length_of(getattr(body, "bad_words", None))
    if characters > MAX_BAD_WORDS:
        raise FieldError("bad_words", f"at most {MAX_BAD_WORDS} characters together, not {characters}.")


def check_count(field: str, tokens: Sequence[int]) -> None:
    """Raises FieldError: more token ids than any context has."""
    if len(tokens) > MAX_TOKENS:
        raise FieldError(field, f"at most {MAX_TOKENS} token ids, not {len(tokens)}.")


def check_length(body: Any, most: int) -> None:
    """Raises FieldError: a text has more than `most` characters, or a batch of them more than `MAX_BATCH`. vLLM bounds
    what is generated from, but not what is only tokenised, or tokenised first and cut then: that keeps its one thread
    for it (60 MB: over a minute) from all other requests."""
    for field in _TEXTS:
        value = getattr(body, field, None)
        texts = inner(value) if field in BATCHES and isinstance(value, (list, tuple)) else [value]
        for text in texts:
            if (length := length_of(text)) > most:
                raise FieldError(field, f"at most {most} characters, which is what a context may hold, not {length}.")
        if (length := length_of(texts)) > max(most, MAX_BATCH):
            raise FieldError(field, f"at most {max(most, MAX_BATCH)} characters together, not {length}.")


def length_of(value: object) -> int:
    """Characters of all texts in a tree, without its keys."""
    length, stack = 0, [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            length += len(value)
        else:
            stack.extend(inner(value))
    return length


def _prompts(value: object) -> int:
    """A list of token ids is one."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not value or isinstance(value[0], int):
        return 1
    return len(value)
