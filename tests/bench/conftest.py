"""A tokenizer that is built here, and a scripted endpoint for code that brings its own event loop."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from app.bench.load import Endpoint
from app.bench.target import Target
from tests.bench.load.sse import Script, SseServer, sse_server


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Byte-level BPE whose vocabulary has some words, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    words = "the harbour ledger clerk counted barrels while merchants argued about copper under grey morning rain"
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    made.train_from_iterator([words] * 20, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=made)
    fast.chat_template = (
        "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
    )
    return fast


@pytest.fixture
def scripted() -> Iterator[SseServer]:
    """A server in a thread. A test sets its `answer`."""
    ready, done = threading.Event(), threading.Event()
    found: list[SseServer] = []

    async def serve() -> None:
        async with sse_server(lambda body: Script()) as server:
            found.append(server)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    yield found[0]
    done.set()
    thread.join(10)


@pytest.fixture
def target(scripted: SseServer, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Target:
    """The scripted server as an endpoint whose tiers are out of reach."""
    monkeypatch.setattr("app.bench.target.load_tokenizer", lambda source: tokenizer)
    return Target(Endpoint(scripted.url, "m"), "here", None, {"url": scripted.url})
