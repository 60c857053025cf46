"""Which node (L1) and which pool (L2) holds which chunk, as the tiers publish it.

A chunk's name is LMCache's hash of the tokens up to its end, which knows neither tenant nor model: so each (model,
salt) has a table of its own. Every owner's messages are numbered, like an engine's. A snapshot replaces all that was
known of its owner, which is how a router that starts late, or fell behind, catches up.
"""

from collections.abc import Sequence

from app.routing.roster import slots_of
from app.routing.stream import Step, Stream
from app.tier_events import Removed as Removed
from app.tier_events import Scope as Scope
from app.tier_events import Stored as Stored
from app.tier_events import TierBatch as TierBatch


class _Owner:
    __slots__ = ("bit", "held", "incarnation", "stream")

    def __init__(self, bit: int, incarnation: str) -> None:
        self.bit = bit
        self.incarnation = incarnation
        self.stream: Stream[TierBatch] = Stream()
        self.held: set[tuple[Scope, bytes]] = set()


class TierIndex:
    """One tier. Not thread safe: one owner calls it under its lock. Nothing blocks or raises."""

    def __init__(self, max_chunks: int = 1_000_000) -> None:
        self._max_chunks = max_chunks
        self._where: dict[Scope, dict[bytes, int]] = {}
        self._owners: dict[str, _Owner] = {}
        self._names: dict[int, str] = {}
        self.everyone = 0
        """Mask of the owners there are."""
        self.changes = 0
        """How often an owner came or went: the same mask may then mean others."""
        self._free = 0
        self.chunks = 0
        self.refused = 0

    def apply(self, batch: TierBatch, *, replayed: bool = False) -> int | None:
        """One batch. Returns the number to ask a replay (or a snapshot) from, if one is needed."""
        owner = self._owners.get(batch.owner)
        if owner is None or owner.incarnation != batch.incarnation:
            if owner is not None:
                self.drop(batch.owner)
            owner = self._owners[batch.owner] = _Owner(self._new_bit(), batch.incarnation)
            self._names[owner.bit] = batch.owner
            self.everyone |= 1 << owner.bit
            self.changes += 1
        if batch.snapshot:
            owner.stream = Stream.starting_at(batch.seq)
        return self._do(owner, owner.stream.offer(batch.seq, batch.ts, batch, replayed=replayed))

    def replay_ended(self, name: str) -> int | None:
        owner = self._owners.get(name)
        return None if owner is None else self._do(owner, owner.stream.replay_ended())

    def drop(self, name: str) -> None:
        """The node, its cache server or the pool is gone."""
        owner = self._owners.pop(name, None)
        if owner is not None:
            self._clear(owner)
            del self._names[owner.bit]
            self.everyone ^= 1 << owner.bit
            self.changes += 1
            self._free |= 1 << owner.bit

    def runs(self, scope: Scope, chunks: Sequence[bytes]) -> dict[str, int]:
        """For each owner, how many of these chunks it holds, contiguous from the first. Owners without any are left
        out.
        """
        return {self._names[bit]: run for run, owners in self.groups(scope, chunks) for bit in slots_of(owners)}

    def groups(self, scope: Scope, chunks: Sequence[bytes]) -> list[tuple[int, int]]:
        """(chunks held from the first on, mask of the owners that hold so many and not the next), the fewest first.

        O(chunks of the longest run), whatever the number of owners. `owner` has the name of a bit.
        """
        table = self._where.get(scope)
        if not table:
            return []
        found: list[tuple[int, int]] = []
        alive = self.everyone
        for at, chunk in enumerate([*chunks, b""]):
            still = alive & table.get(chunk, 0)
            if still != alive:
                if at:
                    found.append((at, alive ^ still))
                alive = still
                if not alive:
                    break
        return found

    def owner(self, bit: int) -> str:
        return self._names[bit]

    def reach(self, scope: Scope, chunks: Sequence[bytes]) -> list[int]:
        """For each position, up to which chunk any owner of this tier holds everything from there on (exclusive).

        For a pool that all nodes see: what it adds behind a node's own run is `reach[run] - run`.
        """
        table = self._where.get(scope, {})
        ends = [0] * (len(chunks) + 1)
        ends[-1] = len(chunks)
        for at in range(len(chunks) - 1, -1, -1):
            ends[at] = ends[at + 1] if chunks[at] in table else at
        return ends

    @property
    def owners(self) -> int:
        return len(self._owners)

    def status(self, prefix: str) -> dict[str, float]:
        streams = [owner.stream for owner in self._owners.values()]
        return {
            f"{prefix}_chunks": float(self.chunks),
            f"{prefix}_owners": float(len(self._owners)),
            f"{prefix}_refused": float(self.refused),
            f"{prefix}_incomplete": float(sum(stream.incomplete for stream in streams)),
        }

    def check_integrity(self) -> None:
        expected: dict[Scope, dict[bytes, int]] = {}
        for owner in self._owners.values():
            owner.stream.check_integrity()
            for scope, chunk in owner.held:
                table = expected.setdefault(scope, {})
                table[chunk] = table.get(chunk, 0) | 1 << owner.bit
        assert expected == self._where, "tables and owners disagree"
        total = sum(len(owner.held) for owner in self._owners.values())
        assert total == self.chunks <= self._max_chunks, f"{self.chunks} chunks counted, {total} held"

    # --- inside -----------------------------------------------------------------------------------------------------

    def _new_bit(self) -> int:
        if not self._free:
            return len(self._owners)
        low = self._free & -self._free
        self._free ^= low
        return low.bit_length() - 1

    def _do(self, owner: _Owner, step: "Step[TierBatch]") -> int | None:
        if step.clear:
            self._clear(owner)
        for batch in step.apply:
            if batch.snapshot:
                self._clear(owner)
            for event in batch.events:
                (self._store if isinstance(event, Stored) else self._remove)(owner, event.scope, event.chunks)
        return step.replay_from

    def _store(self, owner: _Owner, scope: Scope, chunks: Sequence[bytes]) -> None:
        table = self._where.get(scope)
        if table is None:
            table = self._where[scope] = {}
        for chunk in chunks:
            if (scope, chunk) in owner.held:
                continue
            if self.chunks >= self._max_chunks:
                self.refused += 1
                continue
            owner.held.add((scope, chunk))
            table[chunk] = table.get(chunk, 0) | 1 << owner.bit
            self.chunks += 1
        if not table:
            del self._where[scope]

    def _remove(self, owner: _Owner, scope: Scope, chunks: Sequence[bytes]) -> None:
        table = self._where.get(scope)
        for chunk in chunks:
            if table is None or (scope, chunk) not in owner.held:
                continue
            owner.held.remove((scope, chunk))
            self.chunks -= 1
            left = table[chunk] & ~(1 << owner.bit)
            if left:
                table[chunk] = left
            else:
                del table[chunk]
        if table is not None and not table:
            self._where.pop(scope, None)

    def _clear(self, owner: _Owner) -> None:
        for scope, chunk in list(owner.held):
            self._remove(owner, scope, (chunk,))
