"""What a cache server says its tiers hold, and how it says it on the wire. Pure; ground that tiers and routing share.

One message is one frame of msgpack, `["tier", tier, incarnation, seq, ts, snapshot, events]`, an event
`["Stored" | "Removed", [model, salt], [chunk, ...]]`. A chunk's name is LMCache's hash of the tokens up to its end,
which knows neither model nor tenant: so each (model, salt) is a scope of its own.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

Tier = Literal["l1", "l2"]
TIERS: tuple[Tier, ...] = ("l1", "l2")


class Scope(msgspec.Struct, frozen=True, array_like=True):
    """Chunks of two scopes are never the same KV."""

    model: str
    salt: str = ""


class Stored(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """These chunks can be loaded from now on."""

    scope: Scope
    chunks: Sequence[bytes]


class Removed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """These chunks can no longer be loaded."""

    scope: Scope
    chunks: Sequence[bytes]


class TierBatch(msgspec.Struct, frozen=True):
    """What one owner published at once. `incarnation` is new whenever the owner starts anew, with numbers from 0."""

    owner: str
    incarnation: str
    seq: int
    ts: float
    events: Sequence[Stored | Removed]
    snapshot: bool = False
    """Whether `events` are all that the owner holds, and not a change."""


class TierMessage(msgspec.Struct, frozen=True, array_like=True, tag="tier"):
    """A batch on the wire. Who it is from the listener knows from where it listens.

    A message without events is a sign of life that repeats the last number.
    """

    tier: Tier
    incarnation: str
    seq: int
    ts: float
    snapshot: bool
    events: list[Stored | Removed]

    def batch(self, owner: str) -> TierBatch:
        return TierBatch(owner, self.incarnation, self.seq, self.ts, self.events, self.snapshot)


class Prefill(msgspec.Struct, frozen=True, array_like=True, tag="prefill"):
    """A replica's word to its cache server: a prompt of which so many tokens were computed and none loaded had its
    first token after so many seconds."""

    tokens: int
    seconds: float


TIER_PREFIX = bytes([0x97, 0xA4]) + b"tier"
"""How every encoded message begins (an array of seven, a string of four): what a socket subscribes to."""

_prefills = msgspec.msgpack.Decoder(Prefill)
_decoder = msgspec.msgpack.Decoder(TierMessage)
encode_tier = encode_prefill = msgspec.msgpack.Encoder().encode


def decode_tier(frame: bytes) -> TierMessage | None:
    """None for any other kind of message and for anything malformed. Never raises."""
    try:
        return _decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def decode_prefill(frame: bytes) -> Prefill | None:
    """None for anything else. Never raises."""
    try:
        return _prefills.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
