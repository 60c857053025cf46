from typing import Any

import pytest
from ray.serve.llm.openai_api_models import CompletionRequest

from app.serving.plain_data import inner


@pytest.mark.parametrize(
    ("value", "held"),
    [([1, 2, 3], []), ([1, "a", 2], [1, "a", 2]), ([], []), ({"a": [1]}, [[1]]), ("text", []), (5, []), (None, [])],
)
def test_token_ids_are_an_end_and_what_is_mixed_is_not(value: Any, held: list[Any]) -> None:
    assert list(inner(value)) == held


def test_a_model_has_its_fields_and_those_that_it_does_not_declare() -> None:
    fields, stray = inner(CompletionRequest(prompt="x", messages=True))
    assert isinstance(fields, dict)
    assert (fields["prompt"], stray) == ("x", {"messages": True})
