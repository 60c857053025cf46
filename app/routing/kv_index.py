"""Which engine holds which block (L0), as its KV events say.

Every block has a name computed from its tokens, adapter and salt (kv_keys.py). An engine announces blocks by its own
hashes and removes them by those alone, so each engine has a table from its hash to our name. The salt stands only in
the first block's event and the adapter in each: later blocks inherit both through their parent's name.
"""

import msgspec

from app.routing.kv_events import AllBlocksCleared, Batch, BlockRemoved, BlockStored, Hash
from app.routing.kv_keys import block_keys, mixed, pack, scope_seed
from app.routing.stream import Step, Stream

_SIZES = 4
"""Block sizes a prompt is named for: one in practice, and a bound on what odd events can cost each request."""


class Run(msgspec.Struct, frozen=True):
    """These replicas hold the first `tokens` tokens of a prompt and not the next block."""

    tokens: int
    replicas: int


class _Engine:
    __slots__ = ("names", "stream")

    def __init__(self) -> None:
        self.stream: Stream[Batch | None] = Stream()
        self.names: dict[Hash, int] = {}


class EngineIndex:
    """Not thread safe: one owner calls it under its lock. Nothing blocks or raises; sockets are the caller's.

    Memory is bounded by `max_blocks` announcements (about 250 bytes each): beyond, new ones are counted and left
    out, which costs hits and nothing else.
    """

    def __init__(self, max_blocks: int = 1_000_000) -> None:
        self._max_blocks = max_blocks
        self._holders: dict[int, int] = {}
        self._engines: dict[int, _Engine] = {}
        self._sizes: set[int] = set()
        self._followed = 0
        self.blocks = 0
        self.most_tokens = 0
        """The most that any one engine was ever said to hold: engines keep what they have until they are full, so this
        soon is what an engine has room for.
        """
        self.orphans = 0
        """Blocks whose parent was never announced to us: their scope is unknown, so they are left out."""
        self.refused = 0

    # --- feeding ----------------------------------------------------------------------------------------------------

    def apply(self, slot: int, seq: int, batch: Batch | None, *, replayed: bool = False) -> int | None:
        """One published batch (None if it could not be decoded). Returns the number to ask a replay from, if one is
        needed.

        Feed replayed batches with `replayed=True`, then call `replay_ended`, whether or not the engine answered.
        """
        engine = self._engines.get(slot)
        if engine is None:
            engine = self._engines[slot] = _Engine()
        if batch is None and not replayed:
            # Not applied, so the next one shows a gap and the replay brings it again.
            return None
        stamp = 0.0 if batch is None else batch.ts
        return self._do(slot, engine, engine.stream.offer(seq, stamp, batch, replayed=replayed))

    def replay_ended(self, slot: int) -> int | None:
        engine = self._engines.get(slot)
        return None if engine is None else self._do(slot, engine, engine.stream.replay_ended())

    def drop(self, slot: int) -> None:
        """The replica is gone. O(its blocks): about 5 ms for 20,000."""
        engine = self._engines.pop(slot, None)
        self._followed &= ~(1 << slot)
        if engine is not None:
            self._clear(slot, engine)

    # --- asking -----------------------------------------------------------------------------------------------------

    def known(self, candidates: int) -> int:
        """The replicas among `candidates` whose events we follow: for the others, nothing known means nothing."""
        return self._followed & candidates

    def match(self, packed: bytes, adapter: str, salt: str, candidates: int) -> list[Run]:
        """For each replica that holds a beginning of this prompt, how much of it, contiguous from the start; longest
        first.

        Replicas that hold nothing are not named. O(blocks of the longest run + replicas): each block costs one
        lookup and one AND.
        """
        runs: list[Run] = []
        for size in self._sizes:
            runs += self._runs(block_keys(packed, scope_seed(adapter, salt, size), size), size, candidates)
        runs.sort(key=lambda run: -run.tokens)
        return runs

    def status(self) -> dict[str, float]:
        streams = [engine.stream for engine in self._engines.values()]
        return {
            "l0_blocks": float(self.blocks),
            "l0_names": float(len(self._holders)),
            "l0_orphans": float(self.orphans),
            "l0_refused": float(self.refused),
            "l0_engines": float(len(self._engines)),
            "l0_incomplete": float(sum(stream.incomplete for stream in streams)),
            "l0_restarts": float(sum(stream.restarts for stream in streams)),
            "l0_losses": float(sum(stream.losses for stream in streams)),
        }

    def check_integrity(self) -> None:
        """Raises AssertionError unless masks say exactly what the engines' tables say."""
        expected: dict[int, int] = {}
        followed = sum(1 << slot for slot, engine in self._engines.items() if engine.stream.started)
        assert followed == self._followed, f"engines {followed:b} are followed, not {self._followed:b}"
        for slot, engine in self._engines.items():
            engine.stream.check_integrity()
            for name in engine.names.values():
                expected[name] = expected.get(name, 0) | 1 << slot
        assert expected == self._holders, f"{len(self._holders)} names are held, {len(expected)} are announced"
        total = sum(len(engine.names) for engine in self._engines.values())
        assert total == self.blocks, f"{self.blocks} blocks counted, {total} announced"
        assert self.blocks <= self._max_blocks

    # --- inside -----------------------------------------------------------------------------------------------------

    def _runs(self, keys: list[int], size: int, candidates: int) -> list[Run]:
        runs: list[Run] = []
        alive: int = candidates
        before: int | None = candidates
        at = 0
        for at, holders in enumerate(map(self._holders.get, keys)):
            if holders == before:  # mostly: whoever is alive holds this one too
                continue
            before, still = holders, alive & (holders or 0)
            if still != alive:
                if at:
                    runs.append(Run(at * size, alive ^ still))
                alive = still
                if not alive:
                    return runs
        if keys and alive:
            runs.append(Run((at + 1) * size, alive))
        return runs

    def _do(self, slot: int, engine: _Engine, step: "Step[Batch | None]") -> int | None:
        if engine.stream.started:
            self._followed |= 1 << slot
        if step.clear:
            self._clear(slot, engine)
        for batch in step.apply:
            if batch is None:
                # It was unreadable in the replay too: something may have been removed that we still believe in.
                self._clear(slot, engine)
                engine.stream.incomplete = True
                continue
            for event in batch.events:
                if isinstance(event, AllBlocksCleared):
                    self._clear(slot, engine)
                elif _is_local(event):
                    if isinstance(event, BlockStored):
                        self._store(slot, engine, event)
                    else:
                        self._remove(slot, engine, event.block_hashes)
        return step.replay_from

    def _store(self, slot: int, engine: _Engine, event: BlockStored) -> None:
        """Idempotent: the same block may be announced again."""
        size, tokens = event.block_size, event.token_ids
        if size < 1 or len(tokens) != size * len(event.block_hashes):
            self.orphans += len(event.block_hashes)
            return
        first = event.parent_block_hash is None
        parent = None if first else engine.names.get(event.parent_block_hash)  # type: ignore[arg-type]
        if parent is None and not first:
            self.orphans += len(event.block_hashes)
            return
        name = parent or 0
        for at, block in enumerate(event.block_hashes):
            extra = _extra(event, at)
            if first and at == 0:
                salt = next((one for one in extra if isinstance(one, str)), "")
                extra = [one for one in extra if one is not salt]
                name = scope_seed(event.lora_name or "", salt, size)
                if len(self._sizes) < _SIZES:
                    self._sizes.add(size)
            name = block_keys(pack(tokens[at * size : (at + 1) * size]), name, size)[0]
            if extra:
                name = mixed(name, extra)
            if block in engine.names:
                continue
            if self.blocks >= self._max_blocks:
                # The engine's table must still lead from parents to children, or a later block would be taken for an
                # orphan.
                self.refused += len(event.block_hashes) - at
                return
            engine.names[block] = name
            self._holders[name] = self._holders.get(name, 0) | 1 << slot
            self.blocks += 1
        self.most_tokens = max(self.most_tokens, len(engine.names) * size)

    def _remove(self, slot: int, engine: _Engine, hashes: list[Hash]) -> None:
        for block in hashes:
            name = engine.names.pop(block, None)
            if name is None:
                continue
            self.blocks -= 1
            left = self._holders[name] & ~(1 << slot)
            if left:
                self._holders[name] = left
            else:
                del self._holders[name]

    def _clear(self, slot: int, engine: _Engine) -> None:
        self._remove(slot, engine, list(engine.names))


def _is_local(event: BlockStored | BlockRemoved) -> bool:
    """Whether it is about the engine's own pool: other media are LMCache's, whose tiers report on their own
    (tier_index.py).

    Of a hybrid model's cache groups only the first counts: a prefix is reusable no further than full attention holds
    it.
    """
    return event.medium in (None, "GPU") and event.locality != "REMOTE" and not event.group_idx


def _extra(event: BlockStored, at: int) -> list[object]:
    """What a block's hash covers besides tokens and adapter: images, embeddings, and in the first block the salt."""
    keys = event.extra_keys
    found = keys[at] if keys is not None and at < len(keys) else None
    return [one for one in found if one != event.lora_name] if found else []
