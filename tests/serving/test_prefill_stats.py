"""The tap on the engine's outputs sees each prompt once and never stands in an output's way."""

from types import SimpleNamespace
from typing import Any

from app.cache_report import PromptTokens
from app.serving.prefill_stats import tap_prefill_stats


def client(**states: Any) -> Any:
    """What is tapped: an output processor that remembers what it was given."""
    processed: list[Any] = []

    def process_outputs(engine_core_outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        processed.append((engine_core_outputs, args, kwargs))
        return "processed"

    processor = SimpleNamespace(request_states=states, process_outputs=process_outputs)
    return SimpleNamespace(output_processor=processor, processed=processed)


def state(external: str, parent: str | None = None) -> Any:
    return SimpleNamespace(
        external_req_id=external, parent_req=SimpleNamespace(external_req_id=parent) if parent else None
    )


def output(request_id: str, stats: tuple[int, int, int] | None) -> Any:
    made = stats and SimpleNamespace(
        num_prompt_tokens=stats[0], num_local_cached_tokens=stats[1], num_external_cached_tokens=stats[2]
    )
    return SimpleNamespace(request_id=request_id, prefill_stats=made)


def tapped(engine: Any, outputs: list[Any]) -> list[tuple[str, str, PromptTokens]]:
    seen: list[tuple[str, str, PromptTokens]] = []
    tap_prefill_stats(engine, lambda *prompt: seen.append(prompt))
    assert engine.output_processor.process_outputs(outputs, 1.5, flag=True) == "processed"
    assert engine.processed == [(outputs, (1.5,), {"flag": True})]
    return seen


def test_a_prompts_first_output_is_reported() -> None:
    outputs = [output("a", (100, 32, 64)), output("a", None)]
    assert tapped(client(a=state("chatcmpl-1")), outputs) == [("a", "chatcmpl-1", PromptTokens(100, 32, 64))]


def test_a_sample_is_reported_under_its_prompts_id() -> None:
    outputs = [output("0_a", (10, 0, 0))]
    assert tapped(client(**{"0_a": state("0_chatcmpl-1", "chatcmpl-1")}), outputs) == [
        ("0_a", "chatcmpl-1", PromptTokens(10, 0, 0))
    ]


def test_an_aborted_request_is_nobodys() -> None:
    assert tapped(client(), [output("gone", (10, 0, 0))]) == []


def test_a_report_that_fails_loses_itself_and_no_output() -> None:
    engine = client(a=state("chatcmpl-1"))

    def broken(*_: Any) -> None:
        raise KeyError("a bug of ours")

    tap_prefill_stats(engine, broken)
    assert engine.output_processor.process_outputs([output("a", (10, 0, 0))]) == "processed"
    assert len(engine.processed) == 1
