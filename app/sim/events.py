"""What tiers and engines hold, published to a policy that listens: the same indexes that production feeds.

Delivery is immediate and complete; what losses and gaps do to an index is tested with the indexes themselves.
"""

from array import array
from collections.abc import Sequence
from itertools import count
from typing import Protocol, runtime_checkable

from app.routing.kv_events import Batch, BlockRemoved, BlockStored
from app.routing.kv_index import EngineIndex
from app.routing.kv_keys import chunk_keys
from app.routing.tier_index import Removed, Scope, Stored, TierBatch, TierIndex

MODEL = "sim"
POOL = "pool"


@runtime_checkable
class Listening(Protocol):
    """A policy with indexes of what is where."""

    l0: EngineIndex
    l1: TierIndex
    l2: TierIndex


class Publisher:
    """Turns names of blocks into the events of engines and tiers. Without a listener it does nothing."""

    def __init__(self, listener: Listening | None, block_tokens: int) -> None:
        self._listener = listener
        self._block_tokens = block_tokens
        self._chunks: dict[int, bytes] = {}
        self._seq: dict[object, count[int]] = {}

    @property
    def listening(self) -> bool:
        return self._listener is not None

    def start_engine(self, slot: int) -> None:
        """A first, empty message: from now on not knowing a block means that it is not there."""
        if self._listener is not None:
            self._seq[slot] = count()
            self._listener.l0.apply(slot, next(self._seq[slot]), Batch(0.0, []))

    def start_tier(self, tier: TierIndex, owner: str) -> None:
        self._tier(tier, owner, [])

    def learn(self, names: Sequence[int], packed: bytes) -> None:
        """Keep the chunk hashes of a prompt's full blocks; each is computed once."""
        if self._listener is None or not names or (names[0] in self._chunks and names[-1] in self._chunks):
            return
        whole = packed[: 4 * self._block_tokens * len(names)]
        self._chunks.update(zip(names, chunk_keys(whole, self._block_tokens), strict=True))

    def engine_stored(self, slot: int, names: Sequence[int], new: Sequence[int], tokens: "array[int]") -> None:
        """`new` are the ones of `names` (a prompt's blocks in order) that the engine has only now."""
        if self._listener is None or not new:
            return
        fresh, size = set(new), self._block_tokens
        events: list[BlockStored | BlockRemoved] = []
        for first, last in _runs([name in fresh for name in names]):
            parent = names[first - 1] if first else None
            events.append(BlockStored(list(names[first:last]), parent, tokens[first * size : last * size], size))
        self._listener.l0.apply(slot, next(self._seq[slot]), Batch(0.0, [*events]))

    def engine_removed(self, slot: int, names: Sequence[int]) -> None:
        if self._listener is not None:
            self._listener.l0.apply(slot, next(self._seq[slot]), Batch(0.0, [BlockRemoved([*names])]))

    def l1(self, node: int, new: Sequence[int], gone: Sequence[int]) -> None:
        if self._listener is not None and (new or gone):
            self._change(self._listener.l1, node_name(node), new, gone)

    def l2(self, new: Sequence[int], gone: Sequence[int]) -> None:
        if self._listener is not None and (new or gone):
            self._change(self._listener.l2, POOL, new, gone)

    def node_died(self, node: int) -> None:
        if self._listener is not None:
            self._listener.l1.drop(node_name(node))
            self._seq.pop((id(self._listener.l1), node_name(node)), None)

    def _change(self, tier: TierIndex, owner: str, new: Sequence[int], gone: Sequence[int]) -> None:
        scope, chunks = Scope(""), self._chunks
        self._tier(
            tier,
            owner,
            [Stored(scope, [chunks[name] for name in new]), Removed(scope, [chunks[name] for name in gone])],
        )

    def _tier(self, tier: TierIndex, owner: str, events: list[Stored | Removed]) -> None:
        numbers = self._seq.setdefault((id(tier), owner), count())
        tier.apply(TierBatch(owner, "1", next(numbers), 0.0, events))


def node_name(node: int) -> str:
    return f"n{node}"


def _runs(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """First and one past the last position of each stretch of True."""
    found, start = [], None
    for at, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = at
        elif not flag and start is not None:
            found.append((start, at))
            start = None
    return found
