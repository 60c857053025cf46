"""Starts, warms up, measures and stops the systems that are compared, one after the other, round by round."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.bench import compare_load
from app.bench.compare_load import ALONE, CHATS, Mix, check_counts, warm_up
from app.bench.load import Bars, Conversation, Endpoint, Prompts, RequestRecord, run_closed
from app.bench.load.plan import count
from app.bench.load.prompts import Tokenizer
from app.bench.systems import Engines, System
from app.errors import ServingError

_WARM_UPS = 6


@dataclass(frozen=True)
class Plan:
    """One round: what is sent, and how many conversations at a time."""

    warm_up: tuple[Conversation, ...]
    parts: dict[str, tuple[tuple[Conversation, ...], int]]

    @classmethod
    def of_round(cls, prompts: Prompts, mix: Mix, seed: int) -> "Plan":
        return cls(
            warm_up(prompts, _WARM_UPS),
            {
                CHATS: (compare_load.chats(prompts, mix, seed), mix.at_a_time),
                ALONE: (compare_load.alone(prompts, mix), mix.alone_at_a_time),
            },
        )


@dataclass
class Comparison:
    """Everything measured so far: part -> system -> records, a list for each round."""

    systems: Sequence[System]
    rounds: dict[str, dict[str, list[list[RequestRecord]]]] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rounds = {part: {system.name: [] for system in self.systems} for part in (CHATS, ALONE)}

    def measure(self, system: System, endpoints: tuple[Endpoint, ...], plan: Plan, progress: Bars, title: str) -> None:
        """Raises ServingError if a system does not answer at all, or counts tokens otherwise than planned."""
        if errors := [each.error for each in run_closed(endpoints, plan.warm_up, _WARM_UPS // 2) if not each.ok]:
            raise ServingError(f"{system.name} has started and does not answer: {errors[0]}")
        for part, (conversations, at_a_time) in plan.parts.items():
            tick = progress.track(f"{title}: {part}", count(conversations))
            records = run_closed(endpoints, conversations, at_a_time, tick)
            check_counts(records, conversations, system.name)
            self.rounds[part][system.name].append(records)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.took_s[what] = round(self.took_s.get(what, 0.0) + time.perf_counter() - started, 1)


@dataclass(frozen=True)
class Options:
    mix: Mix = Mix()  # noqa: RUF009 - frozen itself
    rounds: int = 2
    seed: int = 1


def run(
    engines: Engines, systems: Sequence[System], tokenizer: Tokenizer, options: Options, progress: Bars
) -> Comparison:
    """Each system once a round, the order turned round for each next one."""
    found = Comparison(systems)
    for number in range(options.rounds):
        seed = options.seed + number
        plan = Plan.of_round(Prompts(tokenizer, seed), options.mix, seed)
        for system in systems if number % 2 == 0 else reversed(systems):
            title = f"round {number + 1}, {system.name}"
            progress.say(f"{title}: starting ...")
            with found.timed(system.name), system.started(engines) as endpoints:
                found.measure(system, endpoints, plan, progress, title)
    return found
