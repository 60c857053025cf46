"""Private names of ray 2.60.0."""

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.llm import LLMConfig

from tests.private_symbols.moved import moved, parameters

EXECUTOR, INGRESS, SERVER = "app/serving/executor.py", "app/serving/ingress.py", "app/serving/server.py"


def config(model_id: str = "m", **engine: Any) -> LLMConfig:
    return LLMConfig(
        model_loading_config={"model_id": model_id, "model_source": "/nowhere"},
        accelerator_config={"kind": "cpu"},
        placement_group_config={"bundles": [{"CPU": 1}]},
        engine_kwargs=engine,
    )


def test_serve_can_be_made_to_forget_its_controller() -> None:
    from ray.serve import context

    assert parameters(context._set_global_client) == ["client"], moved(
        "ray.serve.context._set_global_client", "app/client.py"
    )


def test_ray_can_be_kept_from_starting_by_itself() -> None:
    from ray._private import auto_init_hook

    assert "if enable_auto_connect" in inspect.getsource(auto_init_hook.auto_init_ray), moved(
        "auto_init_hook.enable_auto_connect", "app/local/run.py"
    )


def test_errors_of_the_raylet_are_printed_by_a_function_that_can_be_replaced() -> None:
    from ray._private import worker

    assert "print_to_stdstream(" in inspect.getsource(worker.listen_error_messages), moved(
        "ray._private.worker.print_to_stdstream", "app/local/quiet.py"
    )


def test_the_engines_arguments_come_from_its_config() -> None:
    from app.serving.executor import use_one_process

    given = config(max_model_len=64)
    use_one_process(given)
    made = given.get_engine_config().get_initialization_kwargs()
    assert made["distributed_executor_backend"] == "uni", moved("get_initialization_kwargs", EXECUTOR)
    assert made["max_model_len"] == 64, moved("the fields of VLLMEngineConfig", EXECUTOR)


def test_the_engine_config_is_kept_and_updated_in_place() -> None:
    from app.serving.executor import use_one_process

    given = config()
    use_one_process(given)
    given.update_engine_kwargs(kv_transfer_config={"kv_role": "kv_both"})
    made = given.get_engine_config().get_initialization_kwargs()
    assert (made["kv_transfer_config"], made["distributed_executor_backend"]) == ({"kv_role": "kv_both"}, "uni"), moved(
        "LLMConfig._engine_config", EXECUTOR
    )


def test_an_engine_with_several_ranks_keeps_its_executor() -> None:
    from app.serving.executor import use_one_process

    given = config(tensor_parallel_size=2)
    assert given.get_engine_config().num_devices == 2, moved("VLLMEngineConfig.num_devices", EXECUTOR)
    use_one_process(given)
    assert given.get_engine_config().get_initialization_kwargs().get("distributed_executor_backend") != "uni"


def test_the_download_step_asks_the_callback() -> None:
    from ray.llm._internal.serve.core.configs.llm_config import load_class

    from app.serving import local_weights

    file = "app/serving/local_weights.py"
    # Making it through the config would ask a cluster for a placement group.
    given = config()
    assert load_class(local_weights.PATH) is local_weights.LocalWeights, moved("callback_class", file)
    callback = local_weights.LocalWeights(given)
    assert callback.ctx.run_init_node is True, moved("CallbackBase.ctx.run_init_node", file)
    asyncio.run(callback.run_callback("on_before_node_init"))
    assert callback.ctx.run_init_node is False, moved("on_before_node_init", file)


def test_node_initialization_obeys_the_flag() -> None:
    from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine

    assert "if callback.ctx.run_init_node:" in inspect.getsource(VLLMEngine), moved(
        "the check of run_init_node", "app/serving/local_weights.py"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_get_response", ["self", "body", "call_method", "raw_request"]),
        ("_process_llm_request", ["self", "body", "call_method", "raw_request"]),
    ],
)
def test_the_ingress_passes_every_request_through_two_methods(name: str, expected: list[str]) -> None:
    from ray.serve.llm.ingress import OpenAiIngress

    assert parameters(getattr(OpenAiIngress, name)) == expected, moved(f"OpenAiIngress.{name}", INGRESS)
    implementation = inspect.getsource(OpenAiIngress.__mro__[1])
    assert f"self.{name}(" in implementation, moved(f"the call of {name}", INGRESS)


def test_the_response_is_an_async_generator() -> None:
    from ray.serve.llm.ingress import OpenAiIngress

    assert inspect.isasyncgenfunction(OpenAiIngress._get_response), moved("_get_response", INGRESS)
    assert inspect.iscoroutinefunction(OpenAiIngress._process_llm_request), moved("_process_llm_request", INGRESS)


def test_our_endpoints_exist_on_the_ingress() -> None:
    from app.serving.ingress import _ENDPOINTS, TieredIngress

    missing = [name for name in _ENDPOINTS if not inspect.iscoroutinefunction(getattr(TieredIngress, name, None))]
    assert not missing, moved(f"OpenAiIngress.{', '.join(missing)}", INGRESS)


def test_the_http_time_out_is_read_from_the_environment() -> None:
    from ray.llm._internal.serve import constants

    assert '"RAY_SERVE_LLM_ROUTER_HTTP_TIMEOUT"' in inspect.getsource(constants), moved(
        "RAY_SERVE_LLM_ROUTER_HTTP_TIMEOUT", "app/main.py"
    )


def test_model_cards_are_made_of_configs() -> None:
    from ray.llm._internal.serve.core.configs.openai_api_models import to_model_metadata

    assert parameters(to_model_metadata)[:2] == ["model_id", "model_config"], moved("to_model_metadata", "app/main.py")


def test_the_deployments_name_is_derived_from_the_model_id() -> None:
    from ray.llm._internal.serve.core.server import builder

    from app.serving.llm_config import NAME_PREFIX, deployment_name

    file = "app/serving/llm_config.py"
    # Building the deployment would start a cluster: its name is the prefix and this.
    made = NAME_PREFIX + builder._get_deployment_name(config(model_id="org/model-1.5"))
    assert made == deployment_name("org/model-1.5"), moved("the name of a deployment", file)
    assert "name_prefix + deployment_name" in inspect.getsource(builder.build_llm_deployment), moved(
        "the prefix of a deployment's name", file
    )


def test_the_server_runs_chats_and_completions_by_methods_that_we_override() -> None:
    from ray.serve.llm.deployment import LLMServer

    for name in ("chat", "completions"):
        assert parameters(getattr(LLMServer, name)) == ["self", "request", "raw_request_info"], moved(
            f"LLMServer.{name}", SERVER
        )
    for name in ("__init__", "__del__", "reset_prefix_cache"):
        assert inspect.iscoroutinefunction(getattr(LLMServer, name)), moved(f"LLMServer.{name}", SERVER)


def test_the_engine_keeps_vllms_client() -> None:
    from ray.llm._internal.serve.engines.vllm import vllm_engine

    assert "self._engine_client" in inspect.getsource(vllm_engine.VLLMEngine), moved(
        "VLLMEngine._engine_client", SERVER
    )


def test_the_request_id_that_the_replica_gave_wins_over_the_clients() -> None:
    from ray.llm._internal.serve.core.protocol import RawRequestInfo
    from ray.llm._internal.serve.engines.vllm.vllm_engine import _canonicalize_request_id_header

    sent = RawRequestInfo(headers={"X-Request-ID": "the client's"})
    seen = _canonicalize_request_id_header(SimpleNamespace(request_id="ours"), sent).to_starlette_request()
    assert seen.headers.getlist("x-request-id") == ["ours"], (
        "vLLM would name prompts by the client's x-request-id: app/serving/server.py would not find its reports"
    )


def test_requests_carry_their_headers_to_the_replica() -> None:
    from ray.llm._internal.serve.core.protocol import RawRequestInfo

    assert RawRequestInfo(headers={"a": "b"}).headers == {"a": "b"}, moved("RawRequestInfo", "app/client.py")


def test_ray_reads_its_configuration_again() -> None:
    from ray import _raylet

    config_of = getattr(_raylet, "Config", None)
    assert callable(getattr(config_of, "initialize", None)), moved("ray._raylet.Config", "app/local/ray_token.py")
    assert config_of is not None
    config_of.initialize("")


def test_the_session_knows_its_logs() -> None:
    import ray
    from ray._private.node import Node

    file = "app/tiers/node_cache.py"
    assert hasattr(ray._private.worker, "_global_node"), moved("ray._private.worker._global_node", file)
    assert callable(getattr(Node, "get_logs_dir_path", None)), moved("Node.get_logs_dir_path", file)


def test_adapters_are_loaded_by_what_the_server_is_given() -> None:
    from ray.llm._internal.serve.utils.lora_serve_utils import LoraModelLoader
    from ray.serve import context
    from ray.serve.llm.deployment import LLMServer

    loader = "app/serving/adapter_loader.py"
    assert parameters(LoraModelLoader.__init__) == ["self", "lora_root", "download_timeout_s", "max_tries"], moved(
        "LoraModelLoader", loader
    )
    assert parameters(LoraModelLoader.load_model_from_config) == ["self", "lora_model_id", "llm_config"], moved(
        "LoraModelLoader.load_model_from_config", loader
    )
    source = inspect.getsource(LLMServer.__mro__[1])
    assert "await model_downloader.load_model_from_config(" in source, moved("the use of model_downloader", loader)
    assert "await self._maybe_resolve_lora_from_multiplex()" in inspect.getsource(LLMServer._run_request), moved(
        "_maybe_resolve_lora_from_multiplex", SERVER
    )
    assert hasattr(context._RequestContext(), "multiplexed_model_id"), moved("_RequestContext", SERVER)


def test_buckets_are_read_by_two_functions() -> None:
    from ray.llm._internal.common.utils.cloud_utils import CloudFileSystem
    from ray.llm._internal.serve.utils import lora_serve_utils

    file = "app/serving/adapters.py"
    assert parameters(CloudFileSystem.list_subfolders) == ["folder_uri"], moved("CloudFileSystem.list_subfolders", file)
    assert inspect.iscoroutinefunction(lora_serve_utils.get_object_from_cloud), moved("get_object_from_cloud", file)
    assert hasattr(lora_serve_utils, "CLOUD_OBJECT_MISSING"), moved("CLOUD_OBJECT_MISSING", file)
