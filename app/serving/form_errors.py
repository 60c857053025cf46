"""vLLM's engine gives requests up for one reason of the client's, a grammar that it cannot use, and does not say what
the reason was.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from app.serving.field_error import FieldError

T = TypeVar("T")


async def blaming_the_form(responses: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """`responses` to a request that asks for a form (form_checks.asks_for_form). Raises FieldError where the engine
    gave it up."""
    from vllm.exceptions import GenerationError

    try:
        async with aclosing(responses):
            async for response in responses:
                yield response
    except GenerationError:
        what = "the engine can make nothing of this grammar: is a rule in it empty, or without an end?"
        raise FieldError("structured_outputs", what) from None
