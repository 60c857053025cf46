"""`tierserve bench rag`: questions over documents of Zipf popularity, the shared context first in each prompt."""

import random
from dataclasses import asdict, dataclass

import click

from app.bench import sharing
from app.bench.command import Common, common_options
from app.bench.load import Conversation, PlannedRequest, Prompts
from app.bench.load.plan import single
from app.bench.sharing import Load, measure_load


@dataclass(frozen=True, slots=True)
class Rag:
    """Tokens of each part; a prompt is instructions, one document, one question, and the chat template around them."""

    requests: int = 48
    documents: int = 10
    zipf: float = 1.0
    instruction_tokens: int = 128
    document_tokens: int = 1024
    question_tokens: int = 48
    output_tokens: int = 16


def plan(prompts: Prompts, rag: Rag, seed: int) -> tuple[Conversation, ...]:
    """A question a request; `turn` is how often its document was asked about before."""
    rng = random.Random(f"{seed}/rag")
    weights = [1 / (rank + 1) ** rag.zipf for rank in range(rag.documents)]
    system = {"role": "system", "content": prompts.text(rag.instruction_tokens, "instructions")}
    asked = [0] * rag.documents
    made = []
    for _ in range(rag.requests):
        document = rng.choices(range(rag.documents), weights)[0]
        name, turn = f"document {document}", asked[document]
        asked[document] += 1
        text = prompts.text(rag.document_tokens, name)
        question = prompts.text(rag.question_tokens, f"{name}/{turn}")
        messages = (system, {"role": "user", "content": f"{text}\n\n{question}"})
        length = prompts.prompt_length(messages)
        made.append(single(PlannedRequest(messages, length, rag.output_tokens, conversation=name, turn=turn)))
    return tuple(made)


@click.command("rag")
@click.option("--requests", type=click.IntRange(1), default=48, show_default=True)
@click.option("--documents", type=click.IntRange(1), default=10, show_default=True)
@click.option("--document-tokens", type=click.IntRange(1), default=1024, show_default=True)
@click.option("--zipf", type=click.FloatRange(0), default=1.0, show_default=True, help="Exponent of popularity.")
@click.option("--concurrency", type=click.IntRange(1), default=2, show_default=True)
@click.option("--alone/--no-alone", default=True, show_default=True, help="Also with nothing shared, for comparison.")
@common_options
def rag(
    common: Common,
    requests: int,
    documents: int,
    document_tokens: int,
    zipf: float,
    concurrency: int,
    alone: bool,
) -> None:
    """Questions over a set of documents of Zipf popularity, shared context first."""
    options = Rag(requests, documents, zipf, document_tokens=document_tokens)
    measure_load(common, lambda prompts: load_of(prompts, options, concurrency, common.seed), alone=alone)


def load_of(prompts: Prompts, options: Rag, concurrency: int, seed: int) -> Load:
    return Load(
        name="rag",
        title=f"Questions over {options.documents} documents, Zipf {options.zipf:g}",
        plan=plan(prompts, options, seed),
        concurrency=concurrency,
        settings=asdict(options),
        seed=seed,
        note=f"{__doc__}\n\n{sharing.__doc__}",
        first="new document",
        later="known document",
    )
