"""Names for pieces of KV that the router can compute from token ids alone.

Blocks of an engine (L0) get our own chained name and not vLLM's: its hash depends on version, algorithm and seed,
while events carry the tokens. So the name is computed the same way from an event and from a request, and the
engine's hash is only what removals refer to. Chunks of L1 and L2 keep LMCache's name, since removals of files carry
nothing else.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import blake3
import msgspec
import xxhash

from app.routing.prompt import chain


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as native unsigned 32-bit numbers. Raises OverflowError or TypeError for what is not a token id."""
    return tokens.tobytes() if isinstance(tokens, array) and tokens.typecode == "I" else array("I", tokens).tobytes()


def scope_seed(adapter: str, salt: str, block_tokens: int) -> int:
    """Where the chain of a LoRA adapter and tenant starts: nothing is shared across."""
    return xxhash.xxh3_64_intdigest(msgspec.json.encode((adapter, salt, block_tokens)))


def block_keys(packed: bytes, seed: int, block_tokens: int) -> list[int]:
    """One name per whole block. 8,000 blocks of 16 tokens take 1 ms."""
    return chain(packed, seed, 4 * block_tokens)


def mixed(key: int, extra: list[Any]) -> int:
    """A block whose content is more than its tokens (images, prompt embeddings): no text-only prompt may match it."""
    return xxhash.xxh3_64_intdigest(repr(extra).encode(), key)


def chunk_keys(packed: bytes, chunk_tokens: int) -> list[bytes]:
    """LMCache 0.5's blake3 chunk hashes: parent's digest, then the tokens as big-endian 32-bit numbers, from its
    fixed root.
    """
    swapped = array("I", packed)
    swapped.byteswap()
    data, step = swapped.tobytes(), 4 * chunk_tokens
    keys: list[bytes] = []
    parent = _ROOT
    for start in range(0, len(data) - step + 1, step):
        parent = blake3.blake3(parent + data[start : start + step]).digest()
        keys.append(parent)
    return keys


# LMCache hashes (0, (0,), None) to get the parent of a first chunk: eight zero bytes and one token 0.
_ROOT = blake3.blake3(bytes(8) + bytes(4)).digest()
