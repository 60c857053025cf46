"""What each system is started with. That they start, answer and leave nothing is for the command itself to show."""

from typing import Any

import pytest

from app.bench.systems import OURS, SYSTEMS, Engines, local_engines
from app.bench.systems.ray_prefix_affinity import ROUTER
from app.bench.systems.ray_serve_llm import serve_file
from app.bench.systems.vllm_round_robin import flags


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    monkeypatch.setattr("app.demo_model.demo_model", lambda: "/models/demo")
    return local_engines()


def config(document: dict[str, Any]) -> dict[str, Any]:
    (application,) = document["applications"]
    assert application["import_path"] == "ray.serve.llm:build_openai_app"
    (found,) = application["args"]["llm_configs"]
    return dict(found)


def test_ours_is_among_them() -> None:
    assert OURS in SYSTEMS
    assert all(name == system.name for name, system in SYSTEMS.items())


def test_rays_engines_are_given_what_ours_are(engines: Engines) -> None:
    found = config(serve_file(engines))
    assert found["engine_kwargs"] == engines.arguments
    assert found["runtime_env"]["env_vars"] == engines.environment
    assert found["engine_kwargs"]["max_model_len"] == 4096
    assert found["engine_kwargs"]["kv_cache_memory_bytes"] == 1 << 30
    assert found["runtime_env"]["env_vars"]["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert found["deployment_config"]["num_replicas"] == engines.replicas


def test_as_shipped_names_no_router_and_no_cache(engines: Engines) -> None:
    found = config(serve_file(engines))
    assert "request_router_config" not in found["deployment_config"]
    assert "kv_transfer_config" not in found["engine_kwargs"]


def test_ray_accepts_what_it_is_given(engines: Engines) -> None:
    """Its own models: a moved router or a renamed option fails here, not after a minute of starting."""
    from ray.serve.config import RequestRouterConfig
    from ray.serve.llm import LLMServingArgs

    router = {"request_router_config": {"request_router_class": ROUTER}}
    document = serve_file(engines, router)
    LLMServingArgs.model_validate(document["applications"][0]["args"])
    router_class = RequestRouterConfig(request_router_class=ROUTER).get_request_router_class()
    assert router_class.__name__ == "PrefixCacheAffinityRouter"


def test_vllm_accepts_the_arguments_as_flags(engines: Engines) -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(flags(engines.arguments))
    assert {name: getattr(parsed, name) for name in engines.arguments} == engines.arguments


def test_a_flag_is_written_both_ways() -> None:
    arguments = {"enforce_eager": True, "enable_prefix_caching": False, "block_size": 32}
    assert flags(arguments) == ["--enforce-eager", "--no-enable-prefix-caching", "--block-size", "32"]
