"""`app.main:build`: settings -> Ray Serve application. Used by `serve run`, `serve deploy` and KubeRay alike."""

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.llm._internal.serve.core.configs.openai_api_models import to_model_metadata
from ray.serve.llm import LLMConfig, build_llm_deployment

from app.serving.ingress import ingress_class
from app.serving.llm_config import NAME_PREFIX, llm_config
from app.serving.server import TieredLLMServer
from app.serving.stopping import ingress_options
from app.settings import ModelSettings, Settings, load_settings
from app.tiers.cache_spec import cache_spec


def build(args: Mapping[str, Any]) -> serve.Application:
    """One application: an ingress, and a deployment of engines for each model.

    Raises:
        SettingsError: `args` is not a valid tree of settings, or names an engine argument that vLLM does not have.
        ModelError, MachineError: the demo model cannot be prepared.
    """
    return application(load_settings(args))


def application(settings: Settings) -> serve.Application:
    """`build` for who has the settings."""
    configs = {model.id: llm_config(model, settings) for model in settings.models}
    engines = {model.id: _engines(model, configs[model.id], settings) for model in settings.models}
    ingress = serve.deployment(ingress_class(settings), **_ingress_options(settings))
    return ingress.bind(
        llm_deployments=engines,
        model_cards={id_: to_model_metadata(id_, config) for id_, config in configs.items()},
        adapters={model.id: model.lora for model in settings.models if model.lora is not None},
        tokenized={model.id: configs[model.id] for model in settings.models if model.routing.strategy == "kv_aware"},
        grace_s=settings.graceful_shutdown_timeout_s,
    )


def _engines(model: ModelSettings, config: LLMConfig, settings: Settings) -> serve.Application:
    return build_llm_deployment(
        config,
        name_prefix=NAME_PREFIX,
        bind_kwargs={
            "cache": cache_spec(model, usage_stats=settings.usage_stats),
            "kv_events": model.routing.strategy == "kv_aware",
            "lora": model.lora,
            "grace_s": settings.graceful_shutdown_timeout_s,
        },
        deployment_cls=TieredLLMServer,
    )


def _ingress_options(settings: Settings) -> dict[str, Any]:
    ingress = settings.ingress
    environment = {"RAY_SERVE_LLM_ROUTER_HTTP_TIMEOUT": str(ingress.request_timeout_s)}
    return {
        "name": "ingress",
        "num_replicas": ingress.replicas,
        "max_ongoing_requests": ingress.max_ongoing_requests,
        **ingress_options(settings.graceful_shutdown_timeout_s),
        "ray_actor_options": {"num_cpus": ingress.num_cpus, "runtime_env": {"env_vars": environment}},
    }
