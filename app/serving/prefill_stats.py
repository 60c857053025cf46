"""Taps what vLLM's scheduler says of each prompt: tokens from its own blocks, from the connector, computed.

vLLM sends it from the engine to the front end once per request (`PrefillStats`) and keeps only the sum of the cached
ones. There is no public hook for the split (vllm 0.29.0: `AsyncLLM.output_processor.process_outputs`, called on the
replica's event loop for every engine step), so this one file wraps that method; tests/serving/test_prefill_stats.py
fails when it moves.
"""

import logging
from collections.abc import Callable
from typing import Any

from app.cache_report import PromptTokens

logger = logging.getLogger(__name__)

# (internal request id, external request id, what the scheduler said)
OnPrefill = Callable[[str, str, PromptTokens], None]


def tap_prefill_stats(engine_client: Any, on_prefill: OnPrefill) -> None:
    """Call `on_prefill` for each prompt's first output, on the replica's event loop: it must not block or raise."""
    processor = engine_client.output_processor
    process_outputs = processor.process_outputs

    def tapped(engine_core_outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        for output in engine_core_outputs:
            if output.prefill_stats is not None:
                try:
                    _report(processor, output, on_prefill)
                except Exception:  # whatever leaves here would end the engine's output handler, and all its requests
                    logger.exception("a cache report was lost")
        return process_outputs(engine_core_outputs, *args, **kwargs)

    processor.process_outputs = tapped


def _report(processor: Any, output: Any, on_prefill: OnPrefill) -> None:
    state = processor.request_states.get(output.request_id)
    if state is None:  # aborted meanwhile
        return
    stats = output.prefill_stats
    external_id = state.parent_req.external_req_id if state.parent_req is not None else state.external_req_id
    prompt = PromptTokens(stats.num_prompt_tokens, stats.num_local_cached_tokens, stats.num_external_cached_tokens)
    on_prefill(output.request_id, external_id, prompt)
