"""A stream that cannot go on ends with an error in OpenAI's shape and without `[DONE]`.

vLLM puts its own sentence into the stream and then `[DONE]`, which tells clients that the answer is whole.
"""

import json
import logging
import re
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from app.serving.http_errors import UNAVAILABLE, error_body
from app.serving.stopping import StoppedError

logger = logging.getLogger(__name__)

# An event that holds an error. Quotes and line ends inside of generated text are escaped, so no text looks like this.
_ERROR_EVENT = re.compile(r"^data: (\{\"error\".*)$", re.M)
_LOST = "The replica that wrote this answer was lost in the middle of it. Send the request again."
_STOPPED = "The server was stopped in the middle of this answer. Send the request again."
_FAILED = "The server failed to finish this answer."
# What vllm 0.29.0 says of an engine that died (tests/private_symbols).
ENGINE_DIED = "EngineCore encountered an issue"


def error_in(response: Any) -> str | None:
    """The data of the error that a piece of a stream holds, a string or a batch of them."""
    text = "".join(response) if isinstance(response, list) and _all_text(response) else response
    found = _ERROR_EVENT.search(text) if isinstance(text, str) else None
    return found[1] if found else None


def _all_text(pieces: list[Any]) -> bool:
    return all(isinstance(piece, str) for piece in pieces)


async def honest(pieces: AsyncIterable[Any]) -> AsyncIterator[Any]:
    """`pieces` of a body of server-sent events up to the first error, that one for clients to read, then nothing."""
    try:
        async for piece in pieces:
            found = _ERROR_EVENT.search(piece) if isinstance(piece, str) else None
            if found is None:
                yield piece
                continue
            if before := piece[: found.start()]:
                yield before
            yield _event(*_told(found[1]))
            return
    except Exception as error:
        logger.exception("a stream broke")
        yield _event(*_broken_by(error))


def _broken_by(error: Exception) -> tuple[int, str]:
    """By name: exceptions of other processes arrive as classes made on the fly."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if StoppedError.__name__ in names:
        return 503, _STOPPED
    return (503, _LOST) if names & UNAVAILABLE else (500, _FAILED)


def _event(status: int, message: str) -> str:
    return f"data: {json.dumps(error_body(status, message))}\n\n"


def _told(data: str) -> tuple[int, str]:
    """Status and message for the client: vLLM's own of what the client did wrong, ours of the rest."""
    if ENGINE_DIED in data:
        return 503, _LOST
    try:
        error = json.loads(data)["error"]
        status, message = int(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return 500, _FAILED
    return (status, message) if 400 <= status < 500 else (500, _FAILED)
