"""One test for each private name of Ray, vLLM and LMCache that the code touches. No engine, no cluster.

After an upgrade a failure here says what moved and which file of ours depends on it.
"""

import asyncio
import dataclasses
import inspect
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.llm import LLMConfig


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def moved(what: str, file: str) -> str:
    return f"{what} moved: {file} depends on it"


def config(model_id: str = "m", **engine: Any) -> LLMConfig:
    return LLMConfig(
        model_loading_config={"model_id": model_id, "model_source": "/nowhere"},
        accelerator_config={"kind": "cpu"},
        placement_group_config={"bundles": [{"CPU": 1}]},
        engine_kwargs=engine,
    )


class TestVllm:
    """vllm 0.29.0"""

    PREFILL = "app/serving/prefill_stats.py"

    def test_process_outputs_takes_the_outputs_first(self) -> None:
        from vllm.v1.engine.output_processor import OutputProcessor

        assert parameters(OutputProcessor.process_outputs)[:2] == ["self", "engine_core_outputs"], moved(
            "OutputProcessor.process_outputs", self.PREFILL
        )

    def test_an_engine_that_died_says_so_in_these_words(self) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        from app.serving.broken_stream import ENGINE_DIED

        assert ENGINE_DIED in str(EngineDeadError()), moved("EngineDeadError's message", "app/serving/broken_stream.py")

    def test_async_llm_hands_each_steps_outputs_to_its_output_processor(self) -> None:
        from vllm.v1.engine.async_llm import AsyncLLM

        source = inspect.getsource(AsyncLLM)
        assert "self.output_processor = OutputProcessor(" in source, moved("AsyncLLM.output_processor", self.PREFILL)
        # Looked up at each start of the output handler, on the instance: so a wrapper that is set before counts.
        assert "output_processor.process_outputs(" in source, moved("the call of process_outputs", self.PREFILL)

    def test_each_request_has_its_state_with_its_external_id_and_parent(self) -> None:
        from vllm.v1.engine.output_processor import OutputProcessor, RequestState
        from vllm.v1.engine.parallel_sampling import ParentRequest

        assert "self.request_states: dict[str, RequestState]" in inspect.getsource(OutputProcessor), moved(
            "OutputProcessor.request_states", self.PREFILL
        )
        for name in ("external_req_id", "parent_req"):
            assert name in parameters(RequestState.__init__), moved(f"RequestState.{name}", self.PREFILL)
        assert "self.external_req_id" in inspect.getsource(ParentRequest), moved(
            "ParentRequest.external_req_id", self.PREFILL
        )

    def test_prefill_stats_split_the_prompt(self) -> None:
        from vllm.v1.metrics.stats import PrefillStats

        stats = PrefillStats()
        stats.set(num_prompt_tokens=100, num_local_cached_tokens=32, num_external_cached_tokens=64)
        read = (stats.num_prompt_tokens, stats.num_local_cached_tokens, stats.num_external_cached_tokens)
        assert read == (100, 32, 64), moved("PrefillStats' fields", self.PREFILL)
        assert stats.num_computed_tokens == 4, "PrefillStats counts otherwise: app/cache_report.split subtracts"

    def test_events_are_published_to_a_unix_socket_that_vllm_binds(self) -> None:
        from vllm.distributed.kv_events import ZmqEventPublisher

        source = inspect.getsource(ZmqEventPublisher)
        assert 'startswith("ipc://")' in source, moved("binding ipc:// endpoints", "app/serving/announcer.py")
        assert "(self._topic_bytes, seq_bytes, payload)" in source, moved("the message", "app/serving/announcer.py")

    def test_engine_core_outputs_carry_prefill_stats(self) -> None:
        from vllm.v1.engine import EngineCoreOutput

        assert "prefill_stats" in EngineCoreOutput.__struct_fields__, moved(
            "EngineCoreOutput.prefill_stats", self.PREFILL
        )

    def test_the_ids_of_prompts_begin_with_a_kind_and_end_with_their_number(self) -> None:
        from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
        from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

        file = "app/serving/report_book.py"
        assert 'f"chatcmpl-' in inspect.getsource(OpenAIServingChat), moved("the id of a chat completion", file)
        source = inspect.getsource(inspect.getmodule(OpenAIServingCompletion) or OpenAIServingCompletion)
        assert 'f"cmpl-' in source, moved("the id of a completion", file)
        assert 'f"{request_id}-{i}"' in source, moved("the id of a prompt in a batch", file)

    def test_usage_has_room_for_the_report(self) -> None:
        from vllm.entrypoints.serve.engine.protocol import PromptTokenUsageInfo, UsageInfo

        details = {
            "cached_tokens": 9,
            "l0_tokens": 4,
            "l1_tokens": 5,
            "l2_tokens": 0,
            "computed_tokens": 1,
            "replica": "r",
        }
        usage = UsageInfo(prompt_tokens=10, prompt_tokens_details=PromptTokenUsageInfo(**details))
        written = usage.model_dump()["prompt_tokens_details"]
        assert details.items() <= written.items(), "usage drops fields that app/serving/server.py writes into it"

    def test_the_cpu_platform_leaves_the_executor_alone_when_told(self) -> None:
        from vllm.platforms.cpu import CpuPlatform

        assert "VLLM_ENABLE_V1_MULTIPROCESSING" in inspect.getsource(CpuPlatform.check_and_update_config), moved(
            "the variable that keeps the executor `uni`", "app/serving/executor.py"
        )

    def test_front_end_arguments_live_where_they_are_looked_up(self) -> None:
        from vllm.entrypoints.launchers.cli_args import FrontendArgs

        assert dataclasses.is_dataclass(FrontendArgs), moved("FrontendArgs", "app/serving/llm_config.py")

    def test_shutdown_of_the_client_ends_its_engine(self) -> None:
        from vllm.v1.engine.async_llm import AsyncLLM

        assert callable(AsyncLLM.shutdown), moved("AsyncLLM.shutdown", "app/serving/server.py")


class TestRay:
    """ray 2.60.0"""

    EXECUTOR, INGRESS, SERVER = "app/serving/executor.py", "app/serving/ingress.py", "app/serving/server.py"

    def test_serve_can_be_made_to_forget_its_controller(self) -> None:
        from ray.serve import context

        assert parameters(context._set_global_client) == ["client"], moved(
            "ray.serve.context._set_global_client", "app/client.py"
        )

    def test_ray_can_be_kept_from_starting_by_itself(self) -> None:
        from ray._private import auto_init_hook

        assert "if enable_auto_connect" in inspect.getsource(auto_init_hook.auto_init_ray), moved(
            "auto_init_hook.enable_auto_connect", "app/local/run.py"
        )

    def test_errors_of_the_raylet_are_printed_by_a_function_that_can_be_replaced(self) -> None:
        from ray._private import worker

        assert "print_to_stdstream(" in inspect.getsource(worker.listen_error_messages), moved(
            "ray._private.worker.print_to_stdstream", "app/local/quiet.py"
        )

    def test_the_engines_arguments_come_from_its_config(self) -> None:
        from app.serving.executor import use_one_process

        given = config(max_model_len=64)
        use_one_process(given)
        made = given.get_engine_config().get_initialization_kwargs()
        assert made["distributed_executor_backend"] == "uni", moved("get_initialization_kwargs", self.EXECUTOR)
        assert made["max_model_len"] == 64, moved("the fields of VLLMEngineConfig", self.EXECUTOR)

    def test_the_engine_config_is_kept_and_updated_in_place(self) -> None:
        from app.serving.executor import use_one_process

        given = config()
        use_one_process(given)
        given.update_engine_kwargs(kv_transfer_config={"kv_role": "kv_both"})
        made = given.get_engine_config().get_initialization_kwargs()
        assert (made["kv_transfer_config"], made["distributed_executor_backend"]) == ({"kv_role": "kv_both"}, "uni"), (
            moved("LLMConfig._engine_config", self.EXECUTOR)
        )

    def test_an_engine_with_several_ranks_keeps_its_executor(self) -> None:
        from app.serving.executor import use_one_process

        given = config(tensor_parallel_size=2)
        assert given.get_engine_config().num_devices == 2, moved("VLLMEngineConfig.num_devices", self.EXECUTOR)
        use_one_process(given)
        assert given.get_engine_config().get_initialization_kwargs().get("distributed_executor_backend") != "uni"

    def test_the_download_step_asks_the_callback(self) -> None:
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

    def test_node_initialization_obeys_the_flag(self) -> None:
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
    def test_the_ingress_passes_every_request_through_two_methods(self, name: str, expected: list[str]) -> None:
        from ray.serve.llm.ingress import OpenAiIngress

        assert parameters(getattr(OpenAiIngress, name)) == expected, moved(f"OpenAiIngress.{name}", self.INGRESS)
        implementation = inspect.getsource(OpenAiIngress.__mro__[1])
        assert f"self.{name}(" in implementation, moved(f"the call of {name}", self.INGRESS)

    def test_the_response_is_an_async_generator(self) -> None:
        from ray.serve.llm.ingress import OpenAiIngress

        assert inspect.isasyncgenfunction(OpenAiIngress._get_response), moved("_get_response", self.INGRESS)
        assert inspect.iscoroutinefunction(OpenAiIngress._process_llm_request), moved(
            "_process_llm_request", self.INGRESS
        )

    def test_our_endpoints_exist_on_the_ingress(self) -> None:
        from app.serving.ingress import _ENDPOINTS, TieredIngress

        missing = [name for name in _ENDPOINTS if not inspect.iscoroutinefunction(getattr(TieredIngress, name, None))]
        assert not missing, moved(f"OpenAiIngress.{', '.join(missing)}", self.INGRESS)

    def test_the_http_time_out_is_read_from_the_environment(self) -> None:
        from ray.llm._internal.serve import constants

        assert '"RAY_SERVE_LLM_ROUTER_HTTP_TIMEOUT"' in inspect.getsource(constants), moved(
            "RAY_SERVE_LLM_ROUTER_HTTP_TIMEOUT", "app/main.py"
        )

    def test_model_cards_are_made_of_configs(self) -> None:
        from ray.llm._internal.serve.core.configs.openai_api_models import to_model_metadata

        assert parameters(to_model_metadata)[:2] == ["model_id", "model_config"], moved(
            "to_model_metadata", "app/main.py"
        )

    def test_the_deployments_name_is_derived_from_the_model_id(self) -> None:
        from ray.llm._internal.serve.core.server import builder

        from app.serving.llm_config import NAME_PREFIX, deployment_name

        file = "app/serving/llm_config.py"
        # Building the deployment would start a cluster: its name is the prefix and this.
        made = NAME_PREFIX + builder._get_deployment_name(config(model_id="org/model-1.5"))
        assert made == deployment_name("org/model-1.5"), moved("the name of a deployment", file)
        assert "name_prefix + deployment_name" in inspect.getsource(builder.build_llm_deployment), moved(
            "the prefix of a deployment's name", file
        )

    def test_the_server_runs_chats_and_completions_by_methods_that_we_override(self) -> None:
        from ray.serve.llm.deployment import LLMServer

        for name in ("chat", "completions"):
            assert parameters(getattr(LLMServer, name)) == ["self", "request", "raw_request_info"], moved(
                f"LLMServer.{name}", self.SERVER
            )
        for name in ("__init__", "__del__", "reset_prefix_cache"):
            assert inspect.iscoroutinefunction(getattr(LLMServer, name)), moved(f"LLMServer.{name}", self.SERVER)

    def test_the_engine_keeps_vllms_client(self) -> None:
        from ray.llm._internal.serve.engines.vllm import vllm_engine

        assert "self._engine_client" in inspect.getsource(vllm_engine.VLLMEngine), moved(
            "VLLMEngine._engine_client", self.SERVER
        )

    def test_the_request_id_that_the_replica_gave_wins_over_the_clients(self) -> None:
        from ray.llm._internal.serve.core.protocol import RawRequestInfo
        from ray.llm._internal.serve.engines.vllm.vllm_engine import _canonicalize_request_id_header

        sent = RawRequestInfo(headers={"X-Request-ID": "the client's"})
        seen = _canonicalize_request_id_header(SimpleNamespace(request_id="ours"), sent).to_starlette_request()
        assert seen.headers.getlist("x-request-id") == ["ours"], (
            "vLLM would name prompts by the client's x-request-id: app/serving/server.py would not find its reports"
        )

    def test_requests_carry_their_headers_to_the_replica(self) -> None:
        from ray.llm._internal.serve.core.protocol import RawRequestInfo

        assert RawRequestInfo(headers={"a": "b"}).headers == {"a": "b"}, moved("RawRequestInfo", "app/client.py")

    def test_ray_reads_its_configuration_again(self) -> None:
        from ray import _raylet

        config_of = getattr(_raylet, "Config", None)
        assert callable(getattr(config_of, "initialize", None)), moved("ray._raylet.Config", "app/local/ray_token.py")
        assert config_of is not None
        config_of.initialize("")

    def test_the_session_knows_its_logs(self) -> None:
        import ray
        from ray._private.node import Node

        file = "app/tiers/node_cache.py"
        assert hasattr(ray._private.worker, "_global_node"), moved("ray._private.worker._global_node", file)
        assert callable(getattr(Node, "get_logs_dir_path", None)), moved("Node.get_logs_dir_path", file)


class TestLmcache:
    """lmcache 0.5.6"""

    CONNECTOR, MODULE, GUARD = "app/tiers/connector.py", "app/tiers/server_module.py", "app/tiers/guarded_transfer.py"

    def test_the_connector_keeps_an_adapter_for_each_role(self) -> None:
        from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector

        source = inspect.getsource(LMCacheMPConnector)
        for name in ("worker_adapter = LMCacheMPWorkerAdapter(", "scheduler_adapter = LMCacheMPSchedulerAdapter("):
            assert f"self.{name}" in source, moved(f"LMCacheMPConnector.{name.split()[0]}", self.CONNECTOR)

    def test_the_worker_registers_by_a_method_that_the_heartbeat_calls_again(self) -> None:
        from lmcache.integration.vllm.vllm_multi_process_adapter import LMCacheMPWorkerAdapter

        register = LMCacheMPWorkerAdapter._send_register_kv_caches_request
        assert len(parameters(register)) == 2, moved("_send_register_kv_caches_request", self.CONNECTOR)
        heartbeat = inspect.getsource(LMCacheMPWorkerAdapter._ensure_heartbeat_started)
        recovery = inspect.getsource(LMCacheMPWorkerAdapter)
        assert "HeartbeatThread(" in heartbeat, moved("_ensure_heartbeat_started", self.CONNECTOR)
        assert recovery.count("self._send_register_kv_caches_request(") >= 2, moved(
            "registering again after a restart", self.CONNECTOR
        )

    def test_adapters_keep_their_time_out_and_the_workers_health(self) -> None:
        from lmcache.integration.vllm.vllm_multi_process_adapter import (
            LMCacheMPSchedulerAdapter,
            LMCacheMPWorkerAdapter,
        )

        for adapter in (LMCacheMPWorkerAdapter, LMCacheMPSchedulerAdapter):
            assert "self._mq_timeout = mq_timeout" in inspect.getsource(adapter), moved("_mq_timeout", self.CONNECTOR)
        worker = inspect.getsource(LMCacheMPWorkerAdapter)
        assert "self._health_event = threading.Event()" in worker, moved("_health_event", self.CONNECTOR)
        assert "self.transfer_ctx = transfer_ctx" in worker, moved("transfer_ctx", self.CONNECTOR)

    def test_transfers_keep_the_engines_context_and_their_time_out(self) -> None:
        from lmcache.v1.multiprocess.transfer_context import worker_transfer

        source = inspect.getsource(worker_transfer)
        assert "self._engine_driven_context = create_engine_driven_context(" in source, moved(
            "_engine_driven_context", self.CONNECTOR
        )
        assert "self._mq_timeout = mq_timeout" in source, moved("the GPU transfer's _mq_timeout", self.CONNECTOR)

    def test_the_engines_context_has_the_four_methods_that_are_guarded(self) -> None:
        from lmcache.v1.multiprocess.transfer_context.base import EngineDrivenContext

        from app.tiers.guarded_transfer import _FAILURE, guard

        assert {*_FAILURE, "close"} == EngineDrivenContext.__abstractmethods__, moved("EngineDrivenContext", self.GUARD)

        class Context(EngineDrivenContext):  # type: ignore[misc]
            def prepare_store(self, key: Any, instance_id: int) -> Any:
                raise TimeoutError

            prepare_retrieve = commit_retrieve = prepare_store
            commit_store = prepare_store

            def close(self) -> None: ...

        context = Context(metadata=None, req_client=None, mq_timeout=300.0)
        guard(context, threading.Event(), 2.0)
        assert context.mq_timeout == 2.0, moved("EngineDrivenContext.mq_timeout", self.GUARD)
        assert context.prepare_store(None, 0) is None

    def test_metrics_take_their_histogram_from_a_mapping(self) -> None:
        from lmcache.integration.vllm.lmcache_mp_metrics import LMCacheMPPromMetrics
        from prometheus_client import Counter, Gauge, Histogram

        from app.tiers.connector import _LOOKUP_BUCKETS_S, TierConnector

        assert parameters(LMCacheMPPromMetrics.__init__) == [
            *("self", "vllm_config", "metric_types", "labelnames", "per_engine_labelvalues")
        ], moved("LMCacheMPPromMetrics", self.CONNECTOR)
        made: list[dict[str, Any]] = []

        class Recorded:
            def __init__(self, **options: Any) -> None:
                made.append(options)

            def labels(self, *_: object) -> None: ...

        kinds = {Histogram: Recorded, Counter: Recorded, Gauge: Recorded}
        TierConnector.build_prom_metrics(SimpleNamespace(kv_transfer_config=None), kinds, ["engine"], {0: ["0"]})
        assert [options.get("buckets") for options in made if "lookup" in options["name"]] == [_LOOKUP_BUCKETS_S]

    def test_a_lookups_end_says_what_each_tier_had(self) -> None:
        from lmcache.v1.mp_observability.event import Event, EventType
        from lmcache.v1.multiprocess.modules import lookup

        assert {"session_id", "metadata", "event_type"} <= {field.name for field in dataclasses.fields(Event)}, moved(
            "Event", self.MODULE
        )
        assert hasattr(EventType, "MP_LOOKUP_PREFETCH_END"), moved("MP_LOOKUP_PREFETCH_END", self.MODULE)
        source = inspect.getsource(lookup)
        published = source[source.index("event_type=EventType.MP_LOOKUP_PREFETCH_END") :][:800]
        for key in ('"l1_hit_tokens"', '"l2_hit_tokens"', "session_id=job.request_id"):
            assert key in published, moved(f"MP_LOOKUP_PREFETCH_END's {key}", self.MODULE)

    def test_a_requests_salt_stands_in_its_tracker(self) -> None:
        from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector

        source = inspect.getsource(LMCacheMPConnector)
        made = inspect.getsource(LMCacheMPConnector._get_or_create_request_tracker)
        assert "LMCacheMPRequestTracker(request)" in made, moved("_get_or_create_request_tracker", self.CONNECTOR)
        assert source.count("self._get_or_create_request_tracker(request)") >= 2, moved("its callers", self.CONNECTOR)
        assert "cache_salt=tracker.cache_salt" in source, moved("LMCacheMPRequestTracker.cache_salt", self.CONNECTOR)

    def test_l1_says_which_keys_it_stored_and_evicted(self) -> None:
        from lmcache.v1.distributed import l1_manager

        source = inspect.getsource(l1_manager)
        for kind in ("L1_WRITE_FINISHED,", "L1_WRITE_FINISHED_AND_READ_RESERVED,", "L1_KEYS_EVICTED,"):
            published = source[source.index(f"event_type=EventType.{kind}") :][:300]
            assert '"keys"' in published, moved(f"EventType.{kind}", self.MODULE)

    def test_l2_tells_listeners_and_lists_its_adapters(self) -> None:
        from lmcache.v1.distributed.internal_api import L2AdapterListener
        from lmcache.v1.distributed.storage_manager import StorageManager

        from app.tiers.server_module import _L2Listener

        assert {
            name for name in vars(_L2Listener) if name.startswith("on_")
        } == L2AdapterListener.__abstractmethods__, moved("L2AdapterListener", self.MODULE)
        assert parameters(StorageManager.register_l2_listener) == ["self", "listener"], moved(
            "StorageManager.register_l2_listener", self.MODULE
        )
        assert hasattr(StorageManager, "l2_adapters"), moved("StorageManager.l2_adapters", self.MODULE)
