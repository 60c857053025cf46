"""Texts and prompts of exact length, in tokens of the model's own tokenizer. The same seed gives the same text.

Texts are words that are one token each. That a text has as many tokens as it should is checked by encoding it again,
and a prompt's length is that of the whole chat template around it.
"""

import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from app.bench.load.plan import Message
from app.errors import ModelError

_WORDS = 4096
_TRIES = 64


class Tokenizer(Protocol):
    """As much of a Hugging Face tokenizer as is needed here."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def get_vocab(self) -> Mapping[str, int]: ...

    def apply_chat_template(self, conversation: Sequence[Message], **options: Any) -> Any: ...


def load_tokenizer(source: str | Path) -> Tokenizer:
    """From a directory, or by the model's name where that is in the local cache.

    Raises:
        ModelError: there is none.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(str(source))
    except (OSError, ValueError) as error:
        raise ModelError(f"no tokenizer at {source}: name the model's directory with --tokenizer ({error})") from None
    return tokenizer


class Prompts:
    """Makes texts and messages of exact length. Everything follows from `seed` and the name of what is asked for."""

    def __init__(self, tokenizer: Tokenizer, seed: int = 1) -> None:
        self._tokenizer, self._seed = tokenizer, seed

    def length(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def prompt_length(self, messages: Sequence[Message]) -> int:
        """Tokens of the whole prompt that these messages become."""
        text = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
        return self.length(text)

    def text(self, tokens: int, name: str) -> str:
        """Exactly `tokens` tokens of words.

        Raises:
            ModelError: this tokenizer does not let words be put together token by token.
        """
        rng = random.Random(f"{self._seed}/{name}")
        words = rng.choices(self._words, k=tokens)
        for _ in range(_TRIES):
            text = "".join(words)
            excess = self.length(text) - tokens
            if excess == 0:
                return text
            words = words[:-excess] if excess > 0 else words + rng.choices(self._words, k=-excess)
        raise ModelError(f"no text of exactly {tokens} tokens could be made with this tokenizer")

    def user(self, prompt_tokens: int, name: str, before: Sequence[Message] = ()) -> Message:
        """A user's message after which the whole prompt, `before` and the chat template included, is so long.

        Raises:
            ModelError: what stands before is too long already, or as `text`.
        """
        room = prompt_tokens - self.prompt_length([*before, {"role": "user", "content": ""}])
        for tokens in (room, room - 1, room + 1, room - 2, room + 2):
            if tokens <= 0:
                continue
            message = {"role": "user", "content": self.text(tokens, name)}
            if self.prompt_length([*before, message]) == prompt_tokens:
                return message
        raise ModelError(f"no message makes a prompt of exactly {prompt_tokens} tokens: there is room for {room}")

    @cached_property
    def _words(self) -> list[str]:
        """Words that are one token with the space before them, alone and after another; the vocabulary's first."""
        found: list[str] = []
        for token in sorted(self._tokenizer.get_vocab().values()):
            word = self._tokenizer.decode([token])
            plain = word.startswith(" ") and word[1:].isascii() and word[1:].isalpha() and word.islower()
            if plain and len(word) > 3 and self.length(word + word) == 2:
                found.append(word)
            if len(found) == _WORDS:
                break
        if not found:
            raise ModelError("this tokenizer has no words that are one token: prompts of exact length cannot be made")
        return found
