"""The engine is told which library to use, unless the user has said so."""

from typing import Any

import pytest
from ray.serve.llm import LLMConfig

from app.serving.grammar_backend import BACKEND, use_one_backend


def chosen(**engine: Any) -> Any:
    config = LLMConfig(model_loading_config={"model_id": "m"}, engine_kwargs=engine)
    use_one_backend(config)
    return config.engine_kwargs["structured_outputs_config"]


def test_one_is_chosen_before_the_first_request_comes() -> None:
    assert chosen().backend == BACKEND


@pytest.mark.parametrize(
    ("given", "backend", "compact"),
    [({"backend": "guidance"}, "guidance", False), ({"disable_any_whitespace": True}, BACKEND, True)],
)
def test_what_the_user_says_counts(given: dict[str, Any], backend: str, compact: bool) -> None:
    config = chosen(structured_outputs_config=given)
    assert (config.backend, config.disable_any_whitespace) == (backend, compact)
