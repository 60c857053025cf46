"""Which library makes grammars of structured output: one for all requests of an engine, chosen before the first.

Left to itself (`auto`), vLLM 0.29.0 chooses by what the first request asks for, and keeps that: one schema that only
`outlines` would take (`patternProperties`) had every later structured request of that engine fail, whoever sent it.
"""

from typing import Any

BACKEND = "xgrammar"
"""vLLM's own first choice. What it cannot do is a 400 that says so."""


def use_one_backend(llm_config: Any) -> None:
    """Mutates `llm_config` (Ray Serve LLM's LLMConfig) where the user has not chosen. Imports vLLM."""
    from vllm.config import StructuredOutputsConfig

    given = llm_config.engine_kwargs.get("structured_outputs_config") or {}
    if isinstance(given, dict):
        chosen = StructuredOutputsConfig(**{"backend": BACKEND, **given})
        llm_config.update_engine_kwargs(structured_outputs_config=chosen)
