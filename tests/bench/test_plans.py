"""What the benchmarks send: exact lengths, shared beginnings, and the same again from the same seed."""

from typing import Any

import pytest

from app.bench import agents, concurrency, dialogue, rag
from app.bench.load import Conversation, PlannedRequest, Prompts


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> Prompts:
    return Prompts(tokenizer)


def templated(tokenizer: Any, request: PlannedRequest) -> str:
    messages = [dict(message) for message in request.messages]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def tokens(tokenizer: Any, request: PlannedRequest) -> int:
    return len(tokenizer.encode(templated(tokenizer, request), add_special_tokens=False))


def beginning(texts: list[str]) -> str:
    """What all of them begin with."""
    first, last = min(texts), max(texts)
    same = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:same]


def requests(plan: "tuple[Conversation, ...] | list[Conversation]") -> list[PlannedRequest]:
    return [request for conversation in plan for request in conversation.requests]


def test_a_dialogue_has_the_published_lengths_and_each_turn_begins_with_the_one_before(
    tokenizer: Any, prompts: Prompts
) -> None:
    plan = dialogue.plan(prompts, dialogue.Dialogue(), 0)
    assert [tokens(tokenizer, request) for request in plan.requests] == [530, 1058, 1586, 2114]
    assert [request.turn for request in plan.requests] == [0, 1, 2, 3]
    for before, after in zip(plan.requests, plan.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages


def test_questions_over_documents_put_what_is_shared_first(tokenizer: Any, prompts: Prompts) -> None:
    options = rag.Rag(requests=40, documents=4, document_tokens=200)
    plan = requests(rag.plan(prompts, options, seed=1))
    assert len(plan) == 40
    assert all(tokens(tokenizer, request) == request.prompt_tokens for request in plan)
    by_document: dict[str, list[PlannedRequest]] = {}
    for request in plan:
        by_document.setdefault(request.conversation, []).append(request)
    for same in by_document.values():
        assert [request.turn for request in same] == list(range(len(same)))
        texts = [templated(tokenizer, request) for request in same]
        shared = len(tokenizer.encode(beginning(texts), add_special_tokens=False))
        assert shared >= options.instruction_tokens + options.document_tokens
        assert len(set(texts)) == len(texts)
    assert len(by_document["document 0"]) == max(len(same) for same in by_document.values())


def test_agents_share_their_scaffold_and_add_to_their_own_steps(tokenizer: Any, prompts: Prompts) -> None:
    options = agents.Agents(agents=3, steps=4, scaffold_tokens=300)
    plan = agents.plan(prompts, options)
    assert len({conversation.requests[0].messages[0]["content"] for conversation in plan}) == 1
    assert len({conversation.requests[0].messages[1]["content"] for conversation in plan}) == 3
    for conversation in plan:
        assert len(conversation.requests) == 4
        for before, after in zip(conversation.requests, conversation.requests[1:], strict=False):
            assert after.messages[: len(before.messages)] == before.messages
            assert after.prompt_tokens >= before.prompt_tokens + options.call_tokens + options.result_tokens
        assert all(tokens(tokenizer, request) == request.prompt_tokens for request in conversation.requests)


def test_no_question_of_the_rising_load_is_asked_twice(prompts: Prompts) -> None:
    rising = concurrency.Rising(system_tokens=64)
    texts = [
        request.messages[-1]["content"]
        for step in range(2)
        for request in requests(concurrency.plan(prompts, rising, step, 5))
    ]
    assert len(set(texts)) == 10


def test_a_rate_is_held_long_enough_but_never_for_too_few() -> None:
    rising = concurrency.Rising(step_s=10, fewest=12)
    assert [rising.requests(rate) for rate in (0.5, 1, 4)] == [12, 12, 40]


def test_the_same_seed_plans_the_same(tokenizer: Any) -> None:
    options = rag.Rag(requests=10, documents=3, document_tokens=100)
    one, same, other = (rag.plan(Prompts(tokenizer, seed), options, seed) for seed in (1, 1, 2))
    assert one == same != other
