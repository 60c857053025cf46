"""`tierserve bench agents`: tool-calling loops. Each step sends the long fixed scaffold and all steps before again."""

from dataclasses import asdict, dataclass

import click

from app.bench import sharing
from app.bench.command import Common, common_options
from app.bench.load import Conversation, PlannedRequest, Prompts
from app.bench.load.plan import Message
from app.bench.sharing import Load, measure_load


@dataclass(frozen=True, slots=True)
class Agents:
    """The scaffold is a system prompt with the tools' descriptions, the same for every agent. A step is a call that
    the model wrote and the result that the tool gave.
    """

    agents: int = 6
    steps: int = 5
    scaffold_tokens: int = 1536
    task_tokens: int = 48
    call_tokens: int = 24
    result_tokens: int = 96
    output_tokens: int = 16


def plan(prompts: Prompts, agents: Agents) -> tuple[Conversation, ...]:
    scaffold = {"role": "system", "content": prompts.text(agents.scaffold_tokens, "scaffold")}
    return tuple(loop(prompts, agents, scaffold, f"agent {number}") for number in range(agents.agents))


def loop(prompts: Prompts, agents: Agents, scaffold: Message, name: str) -> Conversation:
    """One agent: its calls are part of the plan, so that every run sends the same prompts. A chat is the same: a system
    prompt, questions, and answers to them.
    """
    messages: list[Message] = [scaffold, {"role": "user", "content": prompts.text(agents.task_tokens, name)}]
    requests = []
    for step in range(agents.steps):
        length = prompts.prompt_length(messages)
        requests.append(PlannedRequest(tuple(messages), length, agents.output_tokens, conversation=name, turn=step))
        messages += [
            {"role": "assistant", "content": prompts.text(agents.call_tokens, f"{name}/call {step}")},
            {"role": "user", "content": prompts.text(agents.result_tokens, f"{name}/result {step}")},
        ]
    return Conversation(name, tuple(requests))


@click.command("agents")
@click.option("--agents", "count", type=click.IntRange(1), default=6, show_default=True)
@click.option("--steps", type=click.IntRange(1), default=5, show_default=True)
@click.option("--scaffold-tokens", type=click.IntRange(1), default=1536, show_default=True)
@click.option("--concurrency", type=click.IntRange(1), default=2, show_default=True, help="Agents at a time.")
@click.option("--alone/--no-alone", default=True, show_default=True, help="Also with nothing shared, for comparison.")
@common_options
def agents(common: Common, count: int, steps: int, scaffold_tokens: int, concurrency: int, alone: bool) -> None:
    """Tool-calling loops with a long fixed scaffold."""
    options = Agents(count, steps, scaffold_tokens)
    measure_load(common, lambda prompts: load_of(prompts, options, concurrency, common.seed), alone=alone)


def load_of(prompts: Prompts, options: Agents, concurrency: int, seed: int) -> Load:
    return Load(
        name="agents",
        title=f"{options.agents} agents of {options.steps} steps, scaffold of {options.scaffold_tokens:,} tokens",
        plan=plan(prompts, options),
        concurrency=concurrency,
        settings=asdict(options),
        seed=seed,
        note=f"{__doc__}\n\n{sharing.__doc__}",
        first="first step",
        later="later steps",
    )
