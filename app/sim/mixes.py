"""Synthetic workloads with stated parameters: chats with one system prompt, questions over documents, tool loops.

Names are drawn so that equal names mean equal prefixes; arrivals are Poisson; everything follows from the seed.
"""

import heapq
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from app.sim.workload import Job, Workload

BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Chat:
    """Users of one assistant: a fixed system prompt, then a few turns of their own."""

    system_tokens: int = 2048
    turns: int = 4
    question_tokens: int = 64
    answer_tokens: int = 192
    pause_s: float = 30.0

    def jobs(self, requests: int, rate: float, seed: int, block: int) -> Iterator[Job]:
        fresh = count(self.system_tokens)
        system = tuple(range(self.system_tokens // block))

        def conversation(number: int) -> Callable[[int], Job]:
            own: list[int] = []

            def turn(at: int) -> Job:
                tokens = self.system_tokens + (at + 1) * self.question_tokens + at * self.answer_tokens
                own.extend(next(fresh) for _ in range(-(-tokens // block) - len(system) - len(own)))
                return Job(0.0, tokens, self.answer_tokens, (*system, *own), f"c{number}")

            return turn

        return _interleaved(requests, rate, seed, self.turns, self.pause_s, conversation)


@dataclass(frozen=True, slots=True)
class Rag:
    """Questions over documents whose popularity is Zipf's: the documents first, then the question."""

    documents: int = 2000
    document_tokens: int = 2048
    zipf: float = 0.9
    instruction_tokens: int = 256
    question_tokens: int = 128
    answer_tokens: int = 128

    def jobs(self, requests: int, rate: float, seed: int, block: int) -> Iterator[Job]:
        rng = random.Random(seed)
        weights = [1 / (rank + 1) ** self.zipf for rank in range(self.documents)]
        head, body = self.instruction_tokens // block, self.document_tokens // block
        tail = -(-self.question_tokens // block)
        fresh = count(head + self.documents * body)
        tokens = (head + body) * block + self.question_tokens
        at = 0.0
        for _ in range(requests):
            at += rng.expovariate(rate)
            first = head + rng.choices(range(self.documents), weights)[0] * body
            names = (*range(head), *range(first, first + body), *(next(fresh) for _ in range(tail)))
            yield Job(at, tokens, self.answer_tokens, names)


AGENT = Chat(system_tokens=8192, turns=8, question_tokens=192, answer_tokens=64, pause_s=2.0)
"""Tool-calling loops: a long fixed scaffold, then steps that each add a call and its result."""
Mix = Chat | Rag
MIXES: dict[str, Mix] = {"chat": Chat(), "rag": Rag(), "agent": AGENT}


def mixed(
    name: str, mix: Mix, requests: int, *, rate: float = 1.0, seed: int = 1, block: int = BLOCK_TOKENS
) -> Workload:
    """So many requests at so many a second on average."""
    return Workload(name, block, lambda: mix.jobs(requests, rate, seed, block))


def _interleaved(
    requests: int, rate: float, seed: int, turns: int, pause_s: float, begin: Callable[[int], Callable[[int], Job]]
) -> Iterator[Job]:
    """Conversations that begin as a Poisson process, each pausing for an exponential time between turns."""
    rng = random.Random(seed)
    opened, made, at = 0, 0, rng.expovariate(rate / turns)
    waiting: list[tuple[float, int, int, Callable[[int], Job]]] = []
    while made < requests:
        if not waiting or at <= waiting[0][0]:
            heapq.heappush(waiting, (at, opened, 0, begin(opened)))
            opened, at = opened + 1, at + rng.expovariate(rate / turns)
            continue
        when, number, turn, say = heapq.heappop(waiting)
        yield replace(say(turn), at=when)
        made += 1
        if turn + 1 < turns:
            heapq.heappush(waiting, (when - math.log(1.0 - rng.random()) * pause_s, number, turn + 1, say))
