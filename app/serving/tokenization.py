"""Gives Ray Serve LLM's engine the tokenizer endpoints that it looks for under a name vLLM no longer uses.

ray 2.60.0 reads `openai_serving_tokenization` of the application state, vllm 0.29.0 calls it `serving_tokenization`:
without this, /tokenize and /detokenize answer that the model does not support them. When either name moves,
tests/serving/test_tokenization.py fails; once they agree, this file can go.
"""

from typing import Any


def attach_tokenization(engine: Any) -> None:
    """Mutates `engine` (Ray's VLLMEngine, started) if it found nothing under its own name."""
    if engine._oai_serving_tokenization is None:
        engine._oai_serving_tokenization = getattr(engine._app_state, "serving_tokenization", None)
