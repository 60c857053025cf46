"""How fast an engine is, from published figures of GPUs and models, or from a measurement.

Sources: memory, dense BF16 tensor throughput, memory bandwidth and PCIe bandwidth per direction are NVIDIA's data
sheets' (where those give figures with sparsity, half). Shapes of models are those of their public config.json.
`MFU` and `MBU`, the shares of the peaks that an engine reaches, are assumptions and not measurements: they scale all
policies alike.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.cost import Line, Prior
from app.errors import SettingsError

MFU, MBU = 0.5, 0.7
GPU_MEMORY_SHARE = 0.9
"""vLLM's default gpu_memory_utilization."""
_DTYPE_BYTES = 2


@dataclass(frozen=True, slots=True)
class Gpu:
    memory_gb: float
    tflops: float
    memory_gb_s: float
    pcie_gb_s: float


GPUS = {
    "L4": Gpu(24, 121, 300, 32),
    "L40S": Gpu(48, 362, 864, 32),
    "A100-80GB": Gpu(80, 312, 2039, 32),
    "H100": Gpu(80, 989, 3350, 64),
    "H200": Gpu(141, 989, 4800, 64),
}


@dataclass(frozen=True, slots=True)
class Model:
    parameters: float
    layers: int
    hidden: int
    kv_heads: int
    head: int

    @property
    def kv_bytes(self) -> int:
        """Per token."""
        return 2 * self.layers * self.kv_heads * self.head * _DTYPE_BYTES


MODELS = {
    "llama-3.1-8b": Model(8.03e9, 32, 4096, 8, 128),
    "llama-3.2-3b": Model(3.21e9, 28, 3072, 8, 128),
}


@dataclass(frozen=True, slots=True)
class Speed:
    """One engine. A step takes `step_s` (reading the weights) plus `context_s` per token of context in the batch, or,
    when it carries a chunk of prefill, that chunk's time plus the batch's."""

    prefill_fixed_s: float
    prefill_token_s: float
    prefill_pair_s: float
    """Attention: per pair of a computed token and a token before it."""
    step_s: float
    context_s: float
    chunk_tokens: int
    l0_tokens: int
    kv_bytes: int
    l1_bytes_s: float

    def prefill_s(self, cached: int, computed: int) -> float:
        pairs = computed * (cached + 0.5 * computed)
        return self.prefill_fixed_s + computed * self.prefill_token_s + pairs * self.prefill_pair_s

    @property
    def chunk_s(self) -> float:
        return self.chunk_tokens * self.prefill_token_s

    def work_s(self, prompt: int, output: int) -> float:
        """Engine time of one request without any cache, in a batch large enough to share the reading of weights."""
        return self.prefill_s(0, prompt) + output * (prompt + 0.5 * output) * self.context_s

    def prior(self, prompt: int, l2_bytes_s: float) -> Prior:
        """What the load-or-recompute rule believes at the start: these speeds, for prompts of about this length."""
        rate = prompt / (self.prefill_s(0, prompt) - self.prefill_fixed_s)
        return Prior(
            prefill_rate=rate,
            prefill_fixed_s=self.prefill_fixed_s,
            l1_rate=self.l1_bytes_s / self.kv_bytes,
            l2_rate=l2_bytes_s / self.kv_bytes,
        )


def speed_of(gpu: str, model: str) -> Speed:
    """From the tables. Raises SettingsError for a name that is not there, or a model that does not fit."""
    if gpu not in GPUS or model not in MODELS:
        raise SettingsError(f"unknown {gpu!r} or {model!r}: have {', '.join(GPUS)} and {', '.join(MODELS)}")
    card, shape = GPUS[gpu], MODELS[model]
    weights = shape.parameters * _DTYPE_BYTES
    room = int((card.memory_gb * 1e9 * GPU_MEMORY_SHARE - weights) / shape.kv_bytes)
    if room <= 0:
        raise SettingsError(f"{model} does not fit on one {gpu}")
    flops, bandwidth = card.tflops * 1e12 * MFU, card.memory_gb_s * 1e9 * MBU
    return Speed(
        prefill_fixed_s=0.01,
        prefill_token_s=2 * shape.parameters / flops,
        prefill_pair_s=4 * shape.layers * shape.hidden / flops,
        step_s=weights / bandwidth,
        context_s=shape.kv_bytes / bandwidth,
        chunk_tokens=2048,
        l0_tokens=room,
        kv_bytes=shape.kv_bytes,
        l1_bytes_s=card.pcie_gb_s * 1e9 * 0.8,
    )


@dataclass(frozen=True, slots=True)
class Calibration:
    """An engine as it was measured."""

    speed: Speed
    l2_bytes_s: float
    l2_latency_s: float


def calibrated(path: Path, base: Speed) -> Calibration:
    """From the JSON of `tierserve bench ttft`: prefill and loads as lines through its rows; the rest from `base`.

    Raises SettingsError if the file does not have such rows, or was measured on an endpoint without tiers.
    """
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
        if any(row[tier] is None for row in rows for tier in ("l0_s", "l1_s", "l2_s")):
            raise SettingsError(f"{path} was measured without L1 or L2: there is nothing to learn loading from")
        cold = _line([(row["tokens"], row["cold_s"]) for row in rows])
        l1, l2 = (_line([_load(row, tier) for row in rows]) for tier in ("l1_s", "l2_s"))
    except (KeyError, TypeError, ValueError) as error:
        raise SettingsError(f"{path} is not an output of `tierserve bench ttft --json`: {error!r}") from error
    speed = Speed(
        prefill_fixed_s=cold.fixed,
        prefill_token_s=cold.slope,
        prefill_pair_s=0.0,
        step_s=base.step_s,
        context_s=base.context_s,
        chunk_tokens=base.chunk_tokens,
        l0_tokens=base.l0_tokens,
        kv_bytes=base.kv_bytes,
        l1_bytes_s=base.kv_bytes / l1.slope,
    )
    return Calibration(speed, base.kv_bytes / l2.slope, l2.fixed)


def _load(row: dict[str, Any], tier: str) -> tuple[int, float]:
    """What loading took: the rest, computing the tail, is what an L0 hit takes."""
    return row["hit_tokens"], max(1e-6, row[tier] - row["l0_s"])


def _line(points: list[tuple[int, float]]) -> Line:
    """Least squares by the cost model's own line; several passes, so that its prior is forgotten."""
    if not points:
        raise ValueError("no rows")
    line = Line(0.0, points[-1][1] / max(1, points[-1][0]))
    for _ in range(20):
        for tokens, seconds in points:
            line.observe(tokens, seconds)
    return line
