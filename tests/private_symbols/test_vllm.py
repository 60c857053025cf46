"""Private names of vllm 0.29.0."""

import dataclasses
import inspect

from tests.private_symbols.moved import moved, parameters

PREFILL = "app/serving/prefill_stats.py"


def test_process_outputs_takes_the_outputs_first() -> None:
    from vllm.v1.engine.output_processor import OutputProcessor

    assert parameters(OutputProcessor.process_outputs)[:2] == ["self", "engine_core_outputs"], moved(
        "OutputProcessor.process_outputs", PREFILL
    )


def test_an_engine_that_died_says_so_in_these_words() -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    from app.serving.broken_stream import ENGINE_DIED

    assert ENGINE_DIED in str(EngineDeadError()), moved("EngineDeadError's message", "app/serving/broken_stream.py")


def test_async_llm_hands_each_steps_outputs_to_its_output_processor() -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    source = inspect.getsource(AsyncLLM)
    assert "self.output_processor = OutputProcessor(" in source, moved("AsyncLLM.output_processor", PREFILL)
    # Looked up at each start of the output handler, on the instance: so a wrapper that is set before counts.
    assert "output_processor.process_outputs(" in source, moved("the call of process_outputs", PREFILL)


def test_each_request_has_its_state_with_its_external_id_and_parent() -> None:
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState
    from vllm.v1.engine.parallel_sampling import ParentRequest

    assert "self.request_states: dict[str, RequestState]" in inspect.getsource(OutputProcessor), moved(
        "OutputProcessor.request_states", PREFILL
    )
    for name in ("external_req_id", "parent_req"):
        assert name in parameters(RequestState.__init__), moved(f"RequestState.{name}", PREFILL)
    assert "self.external_req_id" in inspect.getsource(ParentRequest), moved("ParentRequest.external_req_id", PREFILL)


def test_prefill_stats_split_the_prompt() -> None:
    from vllm.v1.metrics.stats import PrefillStats

    stats = PrefillStats()
    stats.set(num_prompt_tokens=100, num_local_cached_tokens=32, num_external_cached_tokens=64)
    read = (stats.num_prompt_tokens, stats.num_local_cached_tokens, stats.num_external_cached_tokens)
    assert read == (100, 32, 64), moved("PrefillStats' fields", PREFILL)
    assert stats.num_computed_tokens == 4, "PrefillStats counts otherwise: app/cache_report.split subtracts"


def test_events_are_published_to_a_unix_socket_that_vllm_binds() -> None:
    from vllm.distributed.kv_events import ZmqEventPublisher

    source = inspect.getsource(ZmqEventPublisher)
    assert 'startswith("ipc://")' in source, moved("binding ipc:// endpoints", "app/serving/announcer.py")
    assert "(self._topic_bytes, seq_bytes, payload)" in source, moved("the message", "app/serving/announcer.py")


def test_engine_core_outputs_carry_prefill_stats() -> None:
    from vllm.v1.engine import EngineCoreOutput

    assert "prefill_stats" in EngineCoreOutput.__struct_fields__, moved("EngineCoreOutput.prefill_stats", PREFILL)


def test_the_ids_of_prompts_begin_with_a_kind_and_end_with_their_number() -> None:
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

    file = "app/serving/report_book.py"
    assert 'f"chatcmpl-' in inspect.getsource(OpenAIServingChat), moved("the id of a chat completion", file)
    source = inspect.getsource(inspect.getmodule(OpenAIServingCompletion) or OpenAIServingCompletion)
    assert 'f"cmpl-' in source, moved("the id of a completion", file)
    assert 'f"{request_id}-{i}"' in source, moved("the id of a prompt in a batch", file)


def test_usage_has_room_for_the_report() -> None:
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


def test_the_cpu_platform_leaves_the_executor_alone_when_told() -> None:
    from vllm.platforms.cpu import CpuPlatform

    assert "VLLM_ENABLE_V1_MULTIPROCESSING" in inspect.getsource(CpuPlatform.check_and_update_config), moved(
        "the variable that keeps the executor `uni`", "app/serving/executor.py"
    )


def test_front_end_arguments_live_where_they_are_looked_up() -> None:
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    assert dataclasses.is_dataclass(FrontendArgs), moved("FrontendArgs", "app/serving/llm_config.py")


def test_shutdown_of_the_client_ends_its_engine() -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    assert callable(AsyncLLM.shutdown), moved("AsyncLLM.shutdown", "app/serving/server.py")


def test_the_ranks_of_adapters() -> None:
    from typing import get_args

    from vllm.config.lora import LoRAConfig, MaxLoRARanks

    from app.local import paths

    assert get_args(MaxLoRARanks) == paths._RANKS, moved("MaxLoRARanks", "app/local/paths.py")
    assert LoRAConfig().max_lora_rank == paths._RANK, moved("LoRAConfig.max_lora_rank", "app/local/paths.py")


def test_an_adapter_is_read_from_files_of_two_names() -> None:
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    file = "app/serving/adapter_loader.py"
    for name in ("adapter_model.safetensors", "adapter_model.bin"):
        assert name in inspect.getsource(LoRAModel), moved(f"the name {name}", file)
    assert "adapter_config.json" in inspect.getsource(PEFTHelper), moved("the name adapter_config.json", file)


def test_the_samplers_compilation_obeys_dynamos_switch() -> None:
    from torch._dynamo import config
    from vllm.v1.sample.ops import topk_topp_sampler

    assert "@torch.compile" in inspect.getsource(topk_topp_sampler), "app/serving/llm_config.py: no need to turn it off"
    assert hasattr(config, "disable"), moved("TORCHDYNAMO_DISABLE", "app/serving/llm_config.py")
