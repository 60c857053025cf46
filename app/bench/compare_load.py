"""What `tierserve bench compare` sends: chats behind shared system prompts, and requests that share nothing at all.

All of it is planned before anything is sent: every system gets the same texts in the same order.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.bench.agents import Agents, loop
from app.bench.load import Conversation, PlannedRequest, Prompts, RequestRecord
from app.bench.load.plan import single
from app.errors import ServingError

CHATS, ALONE, WARM_UP = "chats", "nothing shared", "warm-up"


@dataclass(frozen=True, slots=True)
class Mix:
    """Chats have a system prompt of few, several turns, and a person who reads for a moment before each further turn.

    `at_a_time` chats are held at once, which for the requests that share nothing is `alone_at_a_time`.
    """

    chats: int = 8
    system_prompts: int = 3
    system_tokens: int = 512
    turns: int = 3
    question_tokens: int = 128
    answer_tokens: int = 12
    reading_s: float = 1.0
    at_a_time: int = 4
    alone: int = 6
    alone_tokens: int = 640
    alone_at_a_time: int = 2


QUICK = Mix(chats=4, system_prompts=2, turns=2, alone=4)


def chats(prompts: Prompts, mix: Mix, seed: int) -> tuple[Conversation, ...]:
    """Chat n has system prompt n modulo their number; reading takes half to one and a half times `reading_s`."""
    rng = random.Random(f"{seed}/reading")
    shape = Agents(
        steps=mix.turns,
        task_tokens=mix.question_tokens,
        call_tokens=mix.answer_tokens,
        result_tokens=mix.question_tokens,
        output_tokens=mix.answer_tokens,
    )
    systems = [
        {"role": "system", "content": prompts.text(mix.system_tokens, f"system {number}")}
        for number in range(mix.system_prompts)
    ]
    planned = [loop(prompts, shape, systems[n % len(systems)], f"chat {n}") for n in range(mix.chats)]
    return tuple(_read(chat, mix.reading_s, rng) for chat in planned)


def _read(chat: Conversation, mean_s: float, rng: random.Random) -> Conversation:
    later = tuple(replace(each, pause_s=mean_s * rng.uniform(0.5, 1.5)) for each in chat.requests[1:])
    return replace(chat, requests=(chat.requests[0], *later)).in_phase(CHATS)


def alone(prompts: Prompts, mix: Mix) -> tuple[Conversation, ...]:
    """Not even a system prompt is common to two of them: keeping their KV can only cost time."""
    return _singles(prompts, ALONE, mix.alone, mix.alone_tokens, mix.answer_tokens)


def warm_up(prompts: Prompts, count: int) -> tuple[Conversation, ...]:
    return _singles(prompts, WARM_UP, count, tokens=96, answer=4)


def _singles(prompts: Prompts, phase: str, count: int, tokens: int, answer: int) -> tuple[Conversation, ...]:
    names = [f"{phase} {number}" for number in range(count)]
    return tuple(
        single(PlannedRequest((prompts.user(tokens, name),), tokens, answer, phase), name=name) for name in names
    )


def check_counts(records: Sequence[RequestRecord], plan: Sequence[Conversation], system: str) -> None:
    """Raises ServingError if an answered request was of another length than planned, or its answer was."""
    planned = [request for conversation in plan for request in conversation.requests]
    for record in records:
        wanted = (planned[record.index].prompt_tokens, planned[record.index].output_tokens)
        found = (record.prompt_tokens, record.output_tokens)
        if record.ok and found != wanted:
            raise ServingError(
                f"{system} counts {found[0]} tokens in and {found[1]} out where {wanted[0]} and {wanted[1]} were"
                " planned: it does not do the same work as the others"
            )
