"""vLLM's KV-cache events off the wire, as our own types. Pure decoding: the sockets are elsewhere.

The format is vllm/distributed/kv_events.py at 0.29: msgpack, a batch is an array [ts, events, data_parallel_rank?],
an event is a map with its class name under "type", defaults left out. Unknown fields are skipped, so that 0.32's
`session_id` decodes.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

Hash = int | bytes


class BlockStored(msgspec.Struct, tag=True, frozen=True):
    """Blocks became reusable in the engine. `token_ids` are those of all blocks; `parent_block_hash` precedes the
    first.
    """

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, frozen=True):
    """Blocks are no longer reusable."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, frozen=True):
    """The engine's prefix cache was reset."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, array_like=True, frozen=True):
    """What an engine published in one step."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


_decoder = msgspec.msgpack.Decoder(Batch)


def decode_batch(payload: bytes) -> Batch | None:
    """None if it cannot be read: to the index that is a lost message. Never raises."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
