"""Our settings of a model -> Ray Serve LLM's LLMConfig."""

from pathlib import Path
from typing import Any

from ray.serve.llm import LLMConfig

from app import demo_model
from app.errors import SettingsError
from app.routing.core import RoutingCore
from app.serving import executor, local_weights
from app.serving.engine_arguments import check_engine_arguments, in_numbers
from app.serving.stopping import engine_options
from app.settings import GiB, ModelSettings, Settings, deployment_stem

# vLLM, LMCache and Ray each send usage statistics unless told otherwise.
_SILENT = {"VLLM_NO_USAGE_STATS": "1", "LMCACHE_TRACK_USAGE": "false", "RAY_USAGE_STATS_ENABLED": "0"}
_CPU_L0_GIB = 1.0
NAME_PREFIX = "engine:"


def llm_config(model: ModelSettings, settings: Settings) -> LLMConfig:
    """Raises SettingsError for an engine argument that vLLM would refuse; ModelError if the demo model is missing."""
    check_engine_arguments(model)
    on_cpu, source = model.on_cpu, _source(model)
    on_disk = source is not None and Path(source).is_dir()
    return LLMConfig(
        model_loading_config={"model_id": model.id, "model_source": source, "tokenizer_source": model.tokenizer},
        engine_kwargs=engine_arguments(model),
        accelerator_type=None if model.accelerator in ("cpu", "gpu") else model.accelerator,
        accelerator_config={"kind": "cpu" if on_cpu else "gpu"},
        placement_group_config={"bundles": [{"CPU": model.num_cpus}]} if on_cpu else None,
        runtime_env={"env_vars": environment(model, settings)},
        deployment_config=deployment_options(model) | engine_options(settings.graceful_shutdown_timeout_s),
        lora_config=_lora_config(model),
        experimental_configs={"stream_batching_interval_ms": model.stream_batching_ms},
        **({"callback_config": {"callback_class": local_weights.PATH}} if on_disk else {}),
    )


def _source(model: ModelSettings) -> str | None:
    return str(demo_model.demo_model()) if model.source == "demo" else model.source


def _lora_config(model: ModelSettings) -> dict[str, Any] | None:
    """Ray knows buckets only; directories are app.serving.adapter_loader's."""
    if model.lora is None:
        return None
    bucket = model.lora.path if model.lora.directory is None else None
    return {"dynamic_lora_loading_path": bucket, "max_num_adapters_per_replica": model.lora.max_per_replica}


def engine_arguments(model: ModelSettings) -> dict[str, Any]:
    """What vLLM's engine is started with, the user's own arguments last."""
    arguments: dict[str, Any] = {
        "dtype": model.dtype,
        "enable_prefix_caching": model.l0.enabled,
        # `usage.prompt_tokens_details` is where the cache report goes.
        "enable_prompt_tokens_details": True,
    }
    if model.tokenizer is not None:
        arguments["tokenizer"] = model.tokenizer
    if model.revision is not None:
        arguments["revision"] = model.revision
    if model.block_tokens is not None:
        arguments["block_size"] = model.block_tokens
    l0_gib = model.l0.gib or (_CPU_L0_GIB if model.on_cpu else None)
    if l0_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(l0_gib * GiB)
    if model.lora is not None:
        arguments["enable_lora"] = True
        # vLLM keeps as many as fit into one batch (one, by default) and would read each of the others again and again.
        arguments["max_cpu_loras"] = max(model.lora.max_per_replica, model.engine.get("max_loras") or 1)
    return arguments | in_numbers(model.engine)


def deployment_name(model_id: str) -> str:
    """The name of a model's deployment, as Ray Serve LLM derives it from the id and our prefix."""
    return NAME_PREFIX + deployment_stem(model_id)


def deployment_options(model: ModelSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_ongoing_requests": model.max_ongoing_requests,
        "max_queued_requests": model.max_queued_requests,
        # A replica ends with its engine (app.serving.engine_end): seen, and replaced, this soon. Ray's default is 10 s.
        "health_check_period_s": 2,
        "ray_actor_options": {"num_cpus": 0},
        "request_router_config": {
            "request_router_class": "app.serving.router:TierRequestRouter",
            "request_router_kwargs": router_arguments(model),
        },
    }
    if model.autoscaling is not None:
        options["autoscaling_config"] = model.autoscaling.model_dump()
    else:
        options["num_replicas"] = model.replicas or 1
    return options


def router_arguments(model: ModelSettings) -> dict[str, Any]:
    """What every router of the model's deployment is made with. Raises SettingsError for an unknown option."""
    routing = model.routing
    options = dict(routing.options)
    if routing.strategy == "kv_aware":
        # The router names chunks as the cache servers do.
        options.setdefault("chunk_tokens", model.l1.chunk_tokens)
    try:
        RoutingCore(routing.strategy, options)
    except SettingsError as error:
        raise SettingsError(
            f"model {model.id}, routing.options: {error}", ("routing", "options", *error.about)
        ) from None
    return {
        "strategy": routing.strategy,
        "options": options,
        "log_decisions": routing.log_decisions,
        "allow_pinning": routing.debug,
        "model": model.id,
    }


def environment(model: ModelSettings, settings: Settings) -> dict[str, str]:
    """Variables of a replica's processes; the model's own `env` wins."""
    variables = {} if settings.usage_stats else dict(_SILENT)
    if model.on_cpu:
        # Engines of one machine share its cores: pinning each to its own leaves the idle one's unused.
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        variables |= executor.ENVIRONMENT
        if model.engine.get("enforce_eager"):
            # vLLM compiles its sampler even then, when the first request that is not greedy comes.
            variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables | model.env
