"""Runs a CPU engine's only worker inside the engine's process instead of in one more.

Ray Serve LLM asks vLLM for its multi-process executor on CPU, and vLLM's CPU platform turns `uni` into it, because it
sets OpenMP's variables for the worker at start; we set those for the whole replica (app.serving.llm_config). With one
rank the extra process costs a second round of imports (two replicas were ready after 65 s with it, after 58 s
without: docs/serving.md) and leaves a 160 MB segment in /dev/shm when an engine is killed. Private names of ray 2.60.0;
tests/private_symbols fails when they move.
"""

from typing import Any

from ray.llm._internal.serve.engines.vllm.vllm_models import VLLMEngineConfig
from ray.serve.llm import LLMConfig

# Read by vLLM's CPU platform: "0" leaves the chosen executor alone. AsyncLLM runs its engine in a process regardless.
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


class _OneProcess(VLLMEngineConfig):
    def get_initialization_kwargs(self) -> dict[str, Any]:
        return {**super().get_initialization_kwargs(), "distributed_executor_backend": "uni"}


def use_one_process(llm_config: LLMConfig) -> None:
    """Mutates `llm_config`, before its engine is made. Does nothing for an engine with several ranks."""
    config = llm_config.get_engine_config()
    if config.num_devices == 1:
        llm_config._engine_config = _OneProcess(**{name: getattr(config, name) for name in type(config).model_fields})
