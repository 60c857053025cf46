"""What is made of a model's settings is what the installed vLLM and Ray accept."""

from pathlib import Path
from typing import Any

import pytest
from ray.llm._internal.common.callbacks.base import CallbackBase
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import FrontendArgs

from app.errors import SettingsError
from app.local.serve_file import load_serve_file
from app.serving.engine_arguments import check_engine_arguments
from app.serving.llm_config import (
    deployment_options,
    engine_arguments,
    environment,
    llm_config,
    router_arguments,
)
from app.settings import GiB, ModelSettings, Settings
from app.tiers.cache_spec import CacheEndpoint
from app.tiers.transfer import transfer_config


def model(**fields: Any) -> ModelSettings:
    return ModelSettings.model_validate({"id": "m", **fields})


def config(of: ModelSettings, **settings: Any) -> Any:
    return llm_config(of, Settings(models=(of,), **settings))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"accelerator": "gpu"},
        {"lora": {"path": "/adapters", "max_per_replica": 4}, "engine": {"max_lora_rank": 32, "max_loras": 2}},
        {"accelerator": "L40S", "l0": {"gib": 4, "block_tokens": 16}},
        {
            "dtype": "float32",
            "tokenizer": "t",
            "revision": "r",
            "engine": {"max_model_len": 128, "enforce_eager": True},
        },
    ],
)
def test_vllm_accepts_the_engines_arguments(fields: dict[str, Any]) -> None:
    arguments = engine_arguments(model(**fields))
    of_front = {name: arguments.pop(name) for name in list(arguments) if hasattr(FrontendArgs, name)}
    assert of_front == {"enable_prompt_tokens_details": True}
    FrontendArgs(**of_front)
    AsyncEngineArgs(model="m", **arguments)


def test_a_cpu_engine_gets_a_pool_and_blocks_that_its_attention_can_use() -> None:
    arguments = engine_arguments(model())
    assert (arguments["kv_cache_memory_bytes"], arguments["block_size"]) == (GiB, 32)
    on_gpu = engine_arguments(model(accelerator="gpu"))
    assert "kv_cache_memory_bytes" not in on_gpu
    assert "block_size" not in on_gpu


def test_the_users_own_arguments_win() -> None:
    assert engine_arguments(model(engine={"block_size": 64}))["block_size"] == 64


def test_sizes_that_vllms_command_line_reads_become_numbers() -> None:
    made = engine_arguments(model(engine={"max_model_len": "16k", "max_num_batched_tokens": "2K"}))
    assert (made["max_model_len"], made["max_num_batched_tokens"]) == (16_000, 2_048)
    assert engine_arguments(model(engine={"max_model_len": "auto"}))["max_model_len"] == -1


def test_vllm_accepts_the_connector() -> None:
    made = KVTransferConfig(**transfer_config(CacheEndpoint("127.0.0.1", 5555, 1, 2, "s")))
    assert made.is_kv_transfer_instance
    assert made.kv_load_failure_policy == "recompute"
    assert made.get_from_extra_config("lmcache.mp.port", None) == 5555


def test_vllm_finds_the_connector_by_its_name() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from app.tiers.connector import TierConnector

    made = KVTransferConfig(**transfer_config(CacheEndpoint("127.0.0.1", 5555, 1, 2, "s")))
    assert KVConnectorFactory.get_connector_class(made) is TierConnector


def test_every_shipped_file_passes_the_checks_before_a_start(root: Path) -> None:
    for path in (root / "serve_configs").glob("*.yaml"):
        for entry in load_serve_file(path).applications:
            for each in entry.settings.models:
                check_engine_arguments(each)
                router_arguments(each)


def test_load_control_is_on() -> None:
    options = deployment_options(model(max_ongoing_requests=3, max_queued_requests=5))
    assert (options["max_ongoing_requests"], options["max_queued_requests"]) == (3, 5)
    assert options["num_replicas"] == 1
    assert deployment_options(model())["max_ongoing_requests"] < 1000, "Ray's own default is 1e9: none"


def test_replicas_or_autoscaling() -> None:
    assert deployment_options(model(replicas=3))["num_replicas"] == 3
    scaled = deployment_options(model(autoscaling={"max_replicas": 4}))
    assert "num_replicas" not in scaled
    assert scaled["autoscaling_config"]["max_replicas"] == 4


def test_a_wrong_routing_option_is_named_with_its_model() -> None:
    with pytest.raises(SettingsError, match=r"^model m, routing.options: "):
        router_arguments(model(routing={"options": {"no_such_option": 1}}))
    assert router_arguments(model(routing={"debug": True}))["allow_pinning"] is True


def test_statistics_are_sent_by_nobody_unless_turned_on() -> None:
    silent = {"VLLM_NO_USAGE_STATS": "1", "LMCACHE_TRACK_USAGE": "false", "RAY_USAGE_STATS_ENABLED": "0"}
    assert silent.items() <= environment(model(), Settings(models=(model(),))).items()
    assert not silent.keys() & environment(model(), Settings(models=(model(),), usage_stats=True)).keys()


@pytest.mark.parametrize(
    ("fields", "compiles"),
    [
        ({"engine": {"enforce_eager": True}}, False),
        ({}, True),
        ({"accelerator": "gpu", "engine": {"enforce_eager": True}}, True),
    ],
)
def test_an_eager_cpu_engine_compiles_nothing(fields: dict[str, Any], compiles: bool) -> None:
    of = model(**fields)
    assert ("TORCHDYNAMO_DISABLE" not in environment(of, Settings(models=(of,)))) == compiles


def test_the_models_own_variables_win() -> None:
    of = model(env={"VLLM_CPU_OMP_THREADS_BIND": "0-1", "MINE": "1"})
    made = environment(of, Settings(models=(of,)))
    assert (made["VLLM_CPU_OMP_THREADS_BIND"], made["MINE"]) == ("0-1", "1")


def test_ray_accepts_the_whole(tmp_path: Path) -> None:
    made = config(model(source=str(tmp_path), num_cpus=0.5, replicas=2))
    assert made.model_id == "m"
    assert made.accelerator_config.kind == "cpu"
    assert made.placement_group_config["bundles"] == [{"CPU": 0.5}]
    assert made.callback_config.callback_class == "app.serving.local_weights:LocalWeights", "it lies on disk already"
    assert made.get_engine_config().num_devices == 1


def test_a_model_that_is_not_on_disk_is_downloaded() -> None:
    assert config(model(source="org/name")).callback_config.callback_class is CallbackBase


def test_accelerators() -> None:
    assert config(model(accelerator="L40S", source="org/name")).accelerator_type == "L40S"
    assert config(model(accelerator="gpu", source="org/name")).accelerator_type is None


def test_an_engine_keeps_as_many_adapters_as_its_replica() -> None:
    def kept(most: int, **engine: Any) -> int:
        made = engine_arguments(model(lora={"path": "/adapters", "max_per_replica": most}, engine=engine))
        assert made["enable_lora"] is True
        return int(made["max_cpu_loras"])

    assert (kept(3), kept(3, max_loras=5), kept(3, max_cpu_loras=9)) == (3, 5, 9)
    assert "enable_lora" not in engine_arguments(model())


@pytest.mark.parametrize(("path", "bucket"), [("/adapters", None), ("s3://b/adapters/", "s3://b/adapters")])
def test_ray_is_told_of_buckets_only(path: str, bucket: str | None) -> None:
    made = config(model(source="org/name", lora={"path": path, "max_per_replica": 3})).lora_config
    assert (made.dynamic_lora_loading_path, made.max_num_adapters_per_replica) == (bucket, 3)
