"""What a replica knows of a prompt when its stream begins, on its way to the headers of the HTTP response. Pure.

It stands in front of the stream's first piece, as a comment of server-sent events, for an ingress that asks for it and
takes it off again. The headers go out with that piece, after the prefill: later ones could not reach them.
"""

import json
from collections.abc import Mapping
from typing import Any

ASKING_HEADER = "x-tierserve-preface"
"""What an ingress adds to the headers that it hands on to a replica."""

_BEGIN, _END = ": tierserve ", "\n\n"


def is_asked_for(raw_request_info: Any) -> bool:
    return ASKING_HEADER in (getattr(raw_request_info, "headers", None) or {})


def with_preface(piece: Any, details: Mapping[str, Any]) -> Any:
    """The first piece of a stream with `details` before it; as it is if it is no text (an error, say)."""
    if isinstance(piece, list):
        return [with_preface(piece[0], details), *piece[1:]] if piece else piece
    return f"{_BEGIN}{json.dumps(details)}{_END}{piece}" if isinstance(piece, str) else piece


def take_preface(piece: Any) -> tuple[dict[str, Any], Any]:
    """The details before a piece, {} if there are none, and the piece without them."""
    if isinstance(piece, list):
        details, first = take_preface(piece[0]) if piece else ({}, None)
        return details, [first, *piece[1:]] if details else piece
    if not isinstance(piece, str) or not piece.startswith(_BEGIN):
        return {}, piece
    data, _, rest = piece.removeprefix(_BEGIN).partition(_END)
    details = json.loads(data)
    return details, rest
