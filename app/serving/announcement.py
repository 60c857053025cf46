"""What a replica tells the routers of its application, on the wire. Pure.

A replica publishes on one PUB socket, by topic:

    [b"first", message]             FirstToken in msgpack, when a request's first token is there
    [b"kv", number, batch]          its engine's KV events as vLLM wrote them, under numbers of the replica's own

and answers on a ROUTER socket: `[b"", number]` is followed by every kept `[b"", number, batch]` from there on, and then
by END with no batch. Number 0 is always an empty batch: whoever has it knows that nothing came before.
"""

from dataclasses import dataclass

import msgspec

FIRST, KV = b"first", b"kv"
METADATA_KEY = "tierserve"
"""Under which a ReplicaFeed stands in a replica's metadata."""
END = (-1).to_bytes(8, "big", signed=True)


@dataclass(frozen=True)
class ReplicaFeed:
    """Where a replica is heard; it travels to routers as the replica's metadata (plain JSON)."""

    events: str
    replay: str
    """Empty if the engine's KV events are off."""
    tiers: str = ""
    ask: str = ""
    """The node's cache server; empty without L1."""
    cache_model: str = ""
    """The model's name in the cache server's keys."""


class FirstToken(msgspec.Struct, frozen=True, array_like=True):
    """A request's prefill is over. The counts are those of its cache report; `l1` and `l2` are None if their split was
    not known yet, all are None for a request of several prompts."""

    request: str
    """Serve's internal request id."""
    seconds: float
    """From the request's arrival at the replica."""
    l0: int | None = None
    l1: int | None = None
    l2: int | None = None
    computed: int | None = None
    adapter: str = ""
    """What names the KV of the LoRA adapter that answers (app/kv_salt.py); empty for the model itself."""


_decoder = msgspec.msgpack.Decoder(FirstToken)
encode_first_token = msgspec.msgpack.Encoder().encode


def decode_first_token(frame: bytes) -> FirstToken | None:
    """None for anything malformed. Never raises."""
    try:
        return _decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def number_bytes(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def number_of(frame: bytes) -> int:
    return int.from_bytes(frame, "big", signed=True)
