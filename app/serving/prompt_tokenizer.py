"""A request's token ids as its engine will see them, made in the router's process by the model's own template.

Ray Serve LLM has the part (ray 2.60.0, alpha and private: its own KV-aware ingress stands on it), vLLM's renderer
behind it, so templates, tools and special tokens agree with the engine's. This file holds the name;
tests/serving/test_prompt_tokenizer.py fails when it moves.
"""

import asyncio
import threading
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from ray.serve.llm import LLMConfig

_ANSWER_S = 5.0
_LONGEST_TOKEN_ID = 1 << 32


class PromptTokenizer:
    """Call it from any thread but an event loop's: it blocks until the tokens are there (docs/routing.md says
    how long).

    Takes about a second to make and 0.2 GB, since it makes vLLM's configuration of the model, without weights.
    """

    def __init__(self, llm_config: LLMConfig) -> None:
        from ray.llm._internal.serve.routing_policies.kv_aware.vllm.tokenizer import Tokenizer

        self._tokenizer = Tokenizer(llm_config)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="tierserve-tokenizer", daemon=True).start()

    def __call__(self, body: object) -> Sequence[int] | None:
        """None for what has no single prompt (batches, embeddings). Raises whatever the template or tokenizer does."""
        payload = _payload(body)
        prompt = payload.get("prompt")
        if isinstance(prompt, list):
            return _ids(prompt)
        work = asyncio.run_coroutine_threadsafe(self._tokenizer.tokenize(payload), self._loop)
        tokens: list[int] | None = work.result(_ANSWER_S)
        return tokens


def _payload(body: Any) -> Mapping[str, Any]:
    """The fields that a template may read, as plain data."""
    if isinstance(body, Mapping):
        return body
    dumped: Mapping[str, Any] = body.model_dump(exclude_unset=True)
    return dumped


def _ids(prompt: list[Any]) -> Sequence[int] | None:
    """A completion's prompt that is token ids already, alone or as the only one of a batch."""
    if len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if not prompt or not all(isinstance(one, int) and 0 <= one < _LONGEST_TOKEN_ID for one in prompt):
        return None
    return array("I", prompt)
