"""What is the same for every system that is compared: the model, the engines' arguments and their environment.

The shape is that of serve_configs/local.yaml. What would otherwise differ by who starts an engine is set for all: paged
blocks of 32 tokens, and one OpenMP thread for each core that a replica's share of the machine is. (Ray gives a replica
one thread, a `vllm serve` would take all cores for each engine.)
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from app import demo_model
from app.commands.serve import DEFAULT_FILE
from app.settings import ModelSettings, Settings, load_settings

BLOCK_TOKENS = 32


@dataclass(frozen=True)
class Engines:
    """`document` is the serve file of our own application; the other systems are given what it says of engines."""

    document: Mapping[str, Any]

    @cached_property
    def settings(self) -> Settings:
        return load_settings(self.document["applications"][0]["args"])

    @property
    def model(self) -> ModelSettings:
        return self.settings.models[0]

    @property
    def replicas(self) -> int:
        return self.model.replicas or 1

    @property
    def directory(self) -> Path:
        return demo_model.demo_model()

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """vLLM's, by their own names. Imports vLLM."""
        from app.serving.llm_config import engine_arguments

        return engine_arguments(self.model)

    @cached_property
    def environment(self) -> dict[str, str]:
        """Variables of the engines' processes. Imports vLLM."""
        from app.serving.llm_config import environment

        return environment(self.model, self.settings)

    def about(self) -> dict[str, Any]:
        return {"replicas": self.replicas, "engine": self.arguments, "environment": self.environment}


def local_engines(file: Path = DEFAULT_FILE) -> Engines:
    """Of the serve file's one model, prepared if need be."""
    document = yaml.safe_load(file.read_text())
    model = document["applications"][0]["args"]["models"][0]
    model["l0"] = {**model["l0"], "block_tokens": BLOCK_TOKENS}
    model["env"] = {**model.get("env", {}), "OMP_NUM_THREADS": str(_threads(model["replicas"]))}
    return Engines(document)


def _threads(replicas: int) -> int:
    return max(1, (os.cpu_count() or 1) // replicas)
