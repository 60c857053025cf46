from dataclasses import replace
from typing import Any

import pytest

from app.bench.compare_load import QUICK, Mix, alone, chats, check_counts, warm_up
from app.bench.load import Conversation, Prompts
from app.errors import ServingError
from tests.bench.load.records import failed, record
from tests.bench.test_plans import beginning, requests, templated, tokens

MIX = Mix(chats=5, system_prompts=2, system_tokens=100, question_tokens=20, alone=3, alone_tokens=80)


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> Prompts:
    return Prompts(tokenizer)


@pytest.fixture(scope="module")
def planned(prompts: Prompts) -> tuple[Conversation, ...]:
    return chats(prompts, MIX, 1)


def test_chats_take_the_system_prompts_in_turn(planned: tuple[Conversation, ...]) -> None:
    systems = [chat.requests[0].messages[0]["content"] for chat in planned]
    assert systems[0] == systems[2] == systems[4] != systems[1] == systems[3]


def test_each_turn_begins_with_the_one_before(tokenizer: Any, planned: tuple[Conversation, ...]) -> None:
    for chat in planned:
        assert len(chat.requests) == MIX.turns
        for before, after in zip(chat.requests, chat.requests[1:], strict=False):
            assert after.messages[: len(before.messages)] == before.messages
        assert all(tokens(tokenizer, request) == request.prompt_tokens for request in chat.requests)


def test_people_read_before_all_turns_but_the_first(planned: tuple[Conversation, ...]) -> None:
    for chat in planned:
        assert chat.requests[0].pause_s == 0
        assert all(0.5 * MIX.reading_s <= request.pause_s <= 1.5 * MIX.reading_s for request in chat.requests[1:])


def test_alone_nothing_but_the_template_is_shared(tokenizer: Any, prompts: Prompts) -> None:
    plan = requests(alone(prompts, MIX))
    assert [request.prompt_tokens for request in plan] == [MIX.alone_tokens] * MIX.alone
    shared = beginning([templated(tokenizer, request) for request in plan])
    assert len(tokenizer.encode(shared, add_special_tokens=False)) < 16


def test_warming_up_leaves_nothing_that_is_used_later(tokenizer: Any, prompts: Prompts) -> None:
    texts = [templated(tokenizer, each) for each in requests(warm_up(prompts, 4)) + requests(alone(prompts, MIX))]
    assert len(tokenizer.encode(beginning(texts), add_special_tokens=False)) < 16


def test_rounds_have_other_texts_and_other_pauses(tokenizer: Any) -> None:
    one, same, other = (chats(Prompts(tokenizer, seed), MIX, seed) for seed in (1, 1, 2))
    assert one == same
    for left, right in zip(requests(one), requests(other), strict=True):
        assert left.messages[0] != right.messages[0]
    assert [r.pause_s for r in requests(one)] != [r.pause_s for r in requests(other)]


def test_the_quick_load_is_smaller() -> None:
    assert QUICK.chats * QUICK.turns < Mix().chats * Mix().turns
    assert QUICK.alone < Mix().alone


def test_a_system_that_counts_otherwise_is_refused(prompts: Prompts) -> None:
    plan = alone(prompts, MIX)
    right = [record(index=n, prompt_tokens=80, output_tokens=MIX.answer_tokens) for n in range(3)]
    check_counts(right, plan, "s")
    check_counts([*right[:2], failed(index=2)], plan, "s")
    for wrong in (replace(right[2], prompt_tokens=79), replace(right[2], output_tokens=1)):
        with pytest.raises(ServingError, match="s counts"):
            check_counts([*right[:2], wrong], plan, "s")
