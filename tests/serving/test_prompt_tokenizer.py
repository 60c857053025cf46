"""The router's tokens are the engine's: Ray's private tokenizer on vLLM's renderer, with the real small model."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest

from app.demo_model import demo_model, is_prepared
from app.serving.llm_config import llm_config
from app.serving.prompt_tokenizer import PromptTokenizer
from app.settings import Settings, load_settings

pytestmark = pytest.mark.e2e  # it reads the prepared model

SYSTEM = {"role": "system", "content": "You answer in one sentence."}
USER = {"role": "user", "content": "What is a radix tree?"}


@pytest.fixture(scope="module")
def tokenizer() -> PromptTokenizer:
    if not is_prepared():
        demo_model()
    settings: Settings = load_settings({"models": [{"id": "m", "source": "demo", "engine": {"max_model_len": 512}}]})
    return PromptTokenizer(llm_config(settings.models[0], settings))


def test_a_chat_is_written_with_the_models_own_template(tokenizer: PromptTokenizer) -> None:
    from transformers import AutoTokenizer

    tokens = tokenizer(ChatCompletionRequest(model="m", messages=[SYSTEM, USER]))
    reference = AutoTokenizer.from_pretrained(str(demo_model()))
    assert tokens is not None
    expected = reference.apply_chat_template([SYSTEM, USER], add_generation_prompt=True, tokenize=False)
    assert reference.decode(list(tokens)) == expected


def test_a_completion_is_tokens_or_text(tokenizer: PromptTokenizer) -> None:
    text = tokenizer(CompletionRequest(model="m", prompt="Hello there"))
    assert text
    assert list(tokenizer(CompletionRequest(model="m", prompt=list(text))) or ()) == list(text)
    assert list(tokenizer(CompletionRequest(model="m", prompt=[list(text)])) or ()) == list(text)
    assert list(tokenizer({"model": "m", "prompt": "Hello there"}) or ()) == list(text)


def test_what_has_no_single_prompt_has_no_tokens(tokenizer: PromptTokenizer) -> None:
    assert tokenizer(CompletionRequest(model="m", prompt=["a", "b"])) is None
    assert tokenizer(CompletionRequest(model="m", prompt=[[1], [2]])) is None
    assert tokenizer({"model": "m", "input": "text"}) is None


def test_threads_may_call_it_at_once(tokenizer: PromptTokenizer) -> None:
    bodies = [ChatCompletionRequest(model="m", messages=[{"role": "user", "content": f"{n} " * n}]) for n in range(20)]
    alone = [list(tokenizer(body) or ()) for body in bodies]
    with ThreadPoolExecutor(4) as pool:
        together = [list(tokens or ()) for tokens in pool.map(tokenizer, bodies)]
    assert together == alone
    assert sum(thread.name == "tierserve-tokenizer" for thread in threading.enumerate()) == 1
