"""Every option of tierserve, as one typed tree. Unknown keys are refused with their path and the nearest valid name.

The tree is what stands under `args:` of an application in a `serve deploy` file:

    Settings
    ├── models: [ModelSettings]          one endpoint each; `id` is the name clients use
    │   ├── engine: {...}                passed through to vLLM (checked against its argument class)
    │   ├── autoscaling                  instead of `replicas`
    │   ├── l0, l1, l2                   the three tiers, per model
    │   ├── lora                         adapters that clients may ask for
    │   └── routing                      the strategy that picks a replica
    ├── auth                             API keys and the tenants behind them
    ├── ingress                          the HTTP front: replicas, limits
    ├── graceful_shutdown_timeout_s      for answers under way in a replica that is stopped
    └── usage_stats                      the telemetry of Ray, vLLM and LMCache: off unless true

Pure: imports neither ray, vllm nor lmcache, so a file can be checked on any machine.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from app.errors import Loc, SettingsError
from app.settings_auth import AuthSettings
from app.settings_section import MANY, VARIABLE, VAST_GIB, Section
from app.settings_text import as_yaml, explain, follows

GiB = 1 << 30
GRACEFUL_SHUTDOWN_TIMEOUT_S = 15.0
"""Unless a file says otherwise."""

# Model ids become deployment names and LMCache model names: `@`, spaces and control characters break one or the other.
_MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,95}")

# Where Ray Serve LLM can load LoRA adapters from.
_BUCKETS = ("s3://", "gs://", "abfss://", "azure://")


def home() -> Path:
    """Where prepared models and the laptop's L2 pool live: `TIERSERVE_HOME`, else `~/.cache/tierserve`.

    Raises SettingsError for a relative path, which each process would begin elsewhere.
    """
    named = os.environ.get("TIERSERVE_HOME") or "~/.cache/tierserve"
    try:
        path = Path(named).expanduser()
    except RuntimeError:  # no such user
        path = Path(named)
    if not path.is_absolute():
        raise SettingsError(f"TIERSERVE_HOME must be an absolute directory, not {named!r}: correct or unset it")
    return path


class L0Settings(Section):
    """vLLM's paged KV with prefix caching, inside each engine."""

    enabled: bool = Field(True, description="vLLM's prefix caching. Off only for measurements.")
    gib: Annotated[float, Field(gt=0, le=VAST_GIB)] | None = Field(
        None, description="KV memory per engine. None: vLLM's own choice (gpu_memory_utilization); a CPU engine gets 1."
    )
    block_tokens: Annotated[int, Field(gt=0, le=MANY)] | None = Field(
        None, description="Tokens per paged block. None: vLLM's own choice; a CPU engine gets 32."
    )


class L1Settings(Section):
    """Host DRAM: one LMCache server per node and tier configuration, shared by the replicas on that node."""

    enabled: bool = True
    gib: float = Field(1.0, gt=0, le=VAST_GIB, description="Host memory of the pool. On CPU it lies in /dev/shm.")
    chunk_tokens: int = Field(
        64,
        gt=0,
        le=MANY,
        description="Tokens per cached chunk. What is behind the last full chunk is prefilled on every hit.",
    )
    eviction_policy: Literal["LRU", "ARC"] = "LRU"
    workers: int = Field(2, ge=1, le=1024, description="Threads of the server that look chunks up and copy them.")


class L2Settings(Section):
    """The tier shared by all nodes. Needs L1: chunks pass through it in both directions."""

    enabled: bool = True
    backend: Literal["curvine", "fs", "custom"] = Field(
        "curvine",
        description="curvine: our pool of checked files on a directory (a Curvine mount, or any). fs: LMCache's own"
        " files. custom: `adapter` names any L2 adapter of LMCache.",
    )
    path: Path | None = Field(None, description="Directory of the pool. None: `l2` under TIERSERVE_HOME.")
    capacity_gib: float = Field(
        8.0, gt=0, le=VAST_GIB, description="Upper bound of what the pool keeps on its directory."
    )
    prefill_tokens_per_s: float = Field(
        0.0,
        ge=0,
        description="What the pool's eviction assumes of the model's speed, as the router's calibration shows it; it"
        " only matters where models share a pool. 0: not known.",
    )
    adapter: dict[str, Any] | None = Field(
        None, description="For `custom`: the JSON of LMCache's --l2-adapter, e.g. {type: s3, ...}."
    )

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        if value is not None and (not str(value).startswith(("/", "~")) or "\0" in str(value)):
            raise ValueError(
                f"give an absolute directory, not {str(value)!r}: processes begin in directories of their own"
            )
        return value

    @model_validator(mode="after")
    def _adapter_goes_with_custom(self) -> "L2Settings":
        if self.backend == "custom" and (self.adapter is None or "type" not in self.adapter):
            raise ValueError("backend custom needs `adapter: {type: ..., ...}`, the JSON of LMCache's --l2-adapter")
        if self.backend != "custom" and self.adapter is not None:
            raise ValueError(f"`adapter` is only read with backend custom, not with {self.backend}")
        return self

    @property
    def directory(self) -> Path:
        return (self.path or home() / "l2").expanduser()


class LoraSettings(Section):
    """LoRA adapters of a model. Clients ask for `MODEL:ADAPTER`; a replica loads an adapter when it is first asked."""

    path: str = Field(
        description="A directory that every node has, or s3://, gs://, abfss://, azure://. Each folder in it is an"
        " adapter in PEFT's format, and is called what the folder is."
    )
    max_per_replica: int = Field(
        16,
        ge=1,
        le=MANY,
        description="Adapters that a replica keeps loaded. The one that was used longest ago makes room.",
    )

    @field_validator("path")
    @classmethod
    def _valid_path(cls, value: str) -> str:
        if not value.startswith(("/", "~", *_BUCKETS)):
            raise ValueError(f"give an absolute directory or one of {', '.join(_BUCKETS)}, not {value!r}")
        if value.rstrip("/") + "/" in ("s3:/", "gs:/", "abfss:/", "azure:/"):
            raise ValueError(f"name a bucket behind {value}")
        return value.rstrip("/") or "/"

    @property
    def directory(self) -> Path | None:
        """None: it is a bucket."""
        return None if self.path.startswith(_BUCKETS) else Path(self.path).expanduser()


class RoutingSettings(Section):
    """How a request finds its replica. See docs/routing.md."""

    strategy: Literal["prefix_aware", "kv_aware", "session", "round_robin"] = "prefix_aware"
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the strategy, by name.")
    debug: bool = Field(
        False,
        description="Lets a request name its replica in the header x-tierserve-replica, for benchmarks and tests,"
        " and explains each choice in the response header x-tierserve-routing.",
    )
    log_decisions: bool = Field(False, description="Log a line of JSON for each choice.")


class AutoscalingSettings(Section):
    min_replicas: int = Field(1, ge=0, le=MANY)
    max_replicas: int = Field(2, ge=1, le=MANY)
    target_ongoing_requests: float = Field(8, gt=0, description="Requests per replica that autoscaling aims at.")

    @model_validator(mode="after")
    def _ordered(self) -> "AutoscalingSettings":
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}")
        return self


class ModelSettings(Section):
    """One model behind the endpoint, with its own replicas, tiers and routing."""

    id: str = Field(description="The name clients ask for.")
    source: str | None = Field(
        None, description="A directory, a Hugging Face id, an s3:// or gs:// URI, or `demo` (ships with the CPU extra)."
    )
    tokenizer: str | None = None
    revision: str | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    accelerator: str = Field("cpu", description="cpu, gpu (any), or Ray's name of an accelerator type such as L40S.")
    num_cpus: float = Field(1, ge=0, description="CPUs that Ray reserves for a replica.")
    replicas: int | None = Field(None, ge=1, le=MANY)
    autoscaling: AutoscalingSettings | None = None
    max_ongoing_requests: int = Field(
        64, ge=1, le=MANY, description="Requests a replica runs or batches at once; more wait in the router."
    )
    max_queued_requests: int = Field(
        256,
        ge=-1,
        le=MANY,
        description="Requests that may wait in each ingress; more are refused with 503. -1: no limit.",
    )
    stream_batching_ms: float = Field(
        0,
        ge=0,
        description="Gather a stream's tokens this long before sending them on; adds up to as much to the first.",
    )
    engine: dict[str, Any] = Field(default_factory=dict, description="Arguments of vLLM's engine, by their own names.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of the replicas.")
    l0: L0Settings = L0Settings()
    l1: L1Settings = L1Settings()
    l2: L2Settings = L2Settings()
    lora: LoraSettings | None = None
    routing: RoutingSettings = RoutingSettings()

    @field_validator("id")
    @classmethod
    def _valid_id(cls, value: str) -> str:
        if not _MODEL_ID.fullmatch(value):
            raise ValueError("letters, digits and . _ / - only, at most 96, starting with a letter or digit")
        return value

    @field_validator("source", "tokenizer", "revision", "accelerator")
    @classmethod
    def _not_empty(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("is empty: give a value, or leave the key out")
        return value

    @field_validator("accelerator")
    @classmethod
    def _as_ray_writes_it(cls, value: str) -> str:
        """Which types there are is known to the cluster; these are mistakes anywhere, and would wait for ever."""
        if value not in ("cpu", "gpu") and value.lower() in ("cpu", "gpu", "cuda", "nvidia", "none"):
            meant = "cpu" if value.lower() in ("cpu", "none") else "gpu"
            raise ValueError(
                f"must be cpu, gpu or Ray's name of a type such as L40S, not {value!r}; did you mean {meant}?"
            )
        return value

    @field_validator("env")
    @classmethod
    def _valid_environment(cls, value: dict[str, str]) -> dict[str, str]:
        if wrong := [name for name in value if not VARIABLE.fullmatch(name)]:
            raise ValueError(f"{wrong[0]!r} is no name of a variable: letters, digits and _, beginning with no digit")
        if wrong := [name for name, text in value.items() if "\0" in text]:
            raise ValueError(f"{wrong[0]} holds a NUL, which no variable can")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "ModelSettings":
        if self.replicas is not None and self.autoscaling is not None:
            raise ValueError("give `replicas` or `autoscaling`, not both")
        if self.l2.enabled and not self.l1.enabled:
            raise ValueError("l2 needs l1 (chunks pass through host memory): enable l1 or set `l2: {enabled: false}`")
        owned = {"model", "served_model_name", "tokenizer", "revision", "dtype", "kv_transfer_config"} & set(
            self.engine
        )
        if owned:
            raise ValueError(
                f"engine: {', '.join(sorted(owned))} is set by tierserve: use the model's own keys instead"
            )
        if adapters := {"enable_lora", "lora_modules"} & set(self.engine):
            raise ValueError(f"engine: {', '.join(sorted(adapters))} is set by tierserve: use `lora: {{path: ...}}`")
        if self.routing.strategy == "kv_aware" and "kv_events_config" in self.engine:
            raise ValueError("engine: kv_events_config is set by tierserve, since kv_aware follows the events")
        block = self.block_tokens
        if self.l1.enabled and block is not None and self.l1.chunk_tokens % block:
            raise ValueError(f"l1.chunk_tokens {self.l1.chunk_tokens} must be a multiple of l0.block_tokens {block}")
        return self

    @property
    def on_cpu(self) -> bool:
        return self.accelerator == "cpu"

    @property
    def block_tokens(self) -> int | None:
        """Tokens per paged block as they will be, or None where vLLM chooses. CPU attention wants multiples of 32."""
        return self.l0.block_tokens or (32 if self.on_cpu else None)


class IngressSettings(Section):
    replicas: int = Field(1, ge=1, le=MANY)
    max_ongoing_requests: int = Field(1000, ge=1, le=MANY)
    num_cpus: float = Field(0.1, ge=0)
    request_timeout_s: float = Field(600, gt=0)


class Settings(Section):
    models: tuple[ModelSettings, ...] = Field(min_length=1)
    auth: AuthSettings = AuthSettings()
    ingress: IngressSettings = IngressSettings()
    graceful_shutdown_timeout_s: float = Field(
        GRACEFUL_SHUTDOWN_TIMEOUT_S,
        ge=0,
        description="How long answers may go on in a replica that Serve stops (an update, a smaller fleet, the end);"
        " what is not done by then ends with an error.",
    )
    usage_stats: bool = Field(False, description="Let Ray, vLLM and LMCache send their usage statistics.")

    @model_validator(mode="after")
    def _unique_ids(self) -> "Settings":
        ids = [model.id for model in self.models]
        if len(set(ids)) != len(ids):
            raise ValueError(
                f"two models have the same id: {', '.join(sorted(i for i in set(ids) if ids.count(i) > 1))}"
            )
        if len({deployment_stem(name) for name in ids}) != len(ids):
            raise ValueError(f"model ids must differ in more than . and _, or / and --: {', '.join(sorted(ids))}")
        return self


def deployment_stem(model_id: str) -> str:
    """A model's id as Ray Serve LLM writes it into the name of its deployment."""
    return model_id.replace("/", "--").replace(".", "_")


def _nowhere(loc: Loc) -> str:
    return ""


def load_settings(args: Mapping[str, Any], place: Callable[[Loc], str] = _nowhere) -> Settings:
    """Check `args` (the mapping under `args:` in a serve file) and return the tree.

    `place` says what to put in front of a problem's line, such as the file and its line, by the keys that lead to it.

    Raises:
        SettingsError: one line per problem, with the path of the key and, for an unknown key, the nearest valid one.
    """
    if not isinstance(args, Mapping):
        raise SettingsError(f"{place(())}args: must be a mapping that begins with `models:`, not {as_yaml(args)}")
    try:
        return Settings.model_validate(dict(args))
    except ValidationError as error:
        details = error.errors(include_url=False)
        lines = [place(detail["loc"]) + explain(detail, Settings) for detail in details if not follows(detail, details)]
        raise SettingsError("\n".join(lines)) from None
