"""What vLLM would refuse after minutes is refused before, by its own annotations; what it may accept passes."""

from typing import Any

import pytest

from app.errors import SettingsError
from app.serving.engine_arguments import check_engine_arguments
from app.settings import ModelSettings


def check(**engine: Any) -> None:
    check_engine_arguments(ModelSettings(id="m", engine=engine))


def refusal(**engine: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        check(**engine)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("max_model_length", "vLLM has no such argument; did you mean max_model_len?"),
        ("zzzzzzz", "vLLM has no such argument; see `vllm serve --help`"),
    ],
)
def test_an_argument_that_vllm_does_not_have(name: str, message: str) -> None:
    assert refusal(**{name: 1}) == f"model m, engine.{name}: {message}"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_model_len", "abc", "should be a valid integer, not 'abc'"),
        ("max_model_len", 4096.5, "should be a valid integer, not 4096.5"),
        ("max_num_seqs", [1], "should be a valid integer, not [1]"),
        ("enforce_eager", "maybe", "should be a valid boolean, not 'maybe'"),
        ("gpu_memory_utilization", "high", "should be a valid number, not 'high'"),
        ("kv_cache_memory_bytes", "1.5G", "should be a valid integer, not '1.5G'"),
        ("scheduling_policy", "lifo", "should be 'fcfs' or 'priority', not 'lifo'"),
        ("chat_template", 3, "should be a valid string, not 3"),
    ],
)
def test_a_value_of_a_wrong_type(name: str, value: Any, message: str) -> None:
    assert refusal(**{name: value}) == f"model m, engine.{name}: {message}"


def test_the_path_leads_into_a_mapping() -> None:
    assert refusal(compilation_config={"modee": 3}) == "model m, engine.compilation_config.modee: " + (
        "vLLM has no such key here"
    )
    assert refusal(limit_mm_per_prompt={"image": "x"}).startswith("model m, engine.limit_mm_per_prompt.image: should")


def test_each_wrong_argument_is_a_line() -> None:
    assert len(refusal(max_model_len="abc", max_num_seqs="many", enforce_eager=True).splitlines()) == 2


@pytest.mark.parametrize(
    "engine",
    [
        {"max_model_len": 1, "chat_template": "x", "tensor_parallel_size": 2},
        {"max_model_len": "auto", "max_num_batched_tokens": "2K", "kv_cache_memory_bytes": "1.5g"},
        {"max_model_len": "16k"},
        {"max_model_len": -1},
        {"max_model_len": None, "seed": None},
        {"max_num_seqs": "8", "gpu_memory_utilization": "0.9"},
        {"attention_backend": "FLASH_ATTN", "optimization_level": 2},
        {"compilation_config": 3},
        {"compilation_config": {"mode": 3}},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"hf_overrides": {"architectures": ["X"]}, "ignore_patterns": ["*.bin"]},
        {"lora_dtype": "auto", "quantization_config": {}},
    ],
)
def test_what_vllm_takes_or_judges_itself_passes(engine: dict[str, Any]) -> None:
    check(**engine)
