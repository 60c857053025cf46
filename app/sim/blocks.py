"""L0: an engine's paged KV blocks, with vLLM's order of eviction.

The free queue, as in vLLM 0.29 (`BlockPool.free_blocks`): what is freed without a name goes to the front, what has a
name (a full block that prefix caching may find again) goes to the end, a sequence's last block before its first. So
never-used blocks go first, then the least recently used prefixes, their ends before their beginnings.

    blank --allocate--> in use --free, unnamed--> blank
                           |  \\--free, named--> cached --allocate as a hit--> in use
                           +-- name: it is now findable       cached --evicted--> blank
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Table:
    """One sequence's blocks, in order, and how many tokens lie in them."""

    blocks: list[int] = field(default_factory=list)
    tokens: int = 0


class BlockPool:
    """Not thread safe. "No room" is a None; freeing twice is a bug and asserts."""

    def __init__(self, blocks: int, block_tokens: int = 16) -> None:
        assert blocks > 0, blocks
        assert block_tokens > 0, block_tokens
        self.size = blocks
        self.block_tokens = block_tokens
        self.evicted: list[int] = []
        """Names that lost their block since somebody last emptied this list."""
        self._unused = blocks
        self._free: OrderedDict[int, None] = OrderedDict()
        self._refs: dict[int, int] = {}
        self._name_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}

    # --- asking -----------------------------------------------------------------------------------------------------

    @property
    def free_blocks(self) -> int:
        return self._unused + len(self._free)

    @property
    def used_blocks(self) -> int:
        """Distinct blocks that some sequence holds."""
        return self.size - self.free_blocks

    @property
    def used_slots(self) -> int:
        """Tokens there would be if every block in use were full."""
        return self.used_blocks * self.block_tokens

    def __contains__(self, name: int) -> bool:
        return name in self._block_of

    def hit(self, names: Sequence[int]) -> int:
        """How many blocks of a prompt are here, from its beginning without a gap."""
        known = self._block_of
        for at, name in enumerate(names):
            if name not in known:
                return at
        return len(names)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    # --- one sequence -----------------------------------------------------------------------------------------------

    def allocate(self, prefix: Sequence[int], tokens: int) -> Table | None:
        """A table with room for `tokens`, that begins with the cached blocks named in `prefix` (all must be here)."""
        reused = [self._block_of[name] for name in prefix]
        fresh = self.blocks_for(tokens) - len(reused)
        idle = sum(not self._refs.get(block) for block in reused)
        if fresh > self.free_blocks - idle:
            return None
        for block in reused:
            self._hold(block)
        return Table([*reused, *(self._take() for _ in range(fresh))], tokens)

    def grow(self, table: Table, tokens: int) -> bool:
        """Add tokens at the end, with blocks as they are needed. False, and nothing changed, if there is no room.

        A last block that another table shares is copied first: what is added must not appear there.
        """
        lacking = self.blocks_for(table.tokens + tokens) - len(table.blocks)
        last = table.blocks[-1] if table.tokens % self.block_tokens else None
        copied = last is not None and self._refs[last] > 1
        if lacking + copied > self.free_blocks:
            return False
        if copied and last is not None:
            self._refs[last] -= 1
            table.blocks[-1] = self._take()
        table.blocks.extend(self._take() for _ in range(lacking))
        table.tokens += tokens
        return True

    def fork(self, table: Table) -> Table:
        """A second sequence with the same beginning: it shares every block until it writes (`grow`)."""
        for block in table.blocks:
            self._refs[block] += 1
        return Table(list(table.blocks), table.tokens)

    def name(self, table: Table, first: int, names: Sequence[int]) -> list[int]:
        """The table's blocks from `first` on are full and may be found by these names. Returns the names that are new.

        A name that another block has already stays with that one. (vLLM keeps both copies findable; here the second
        is like a block without a name.)
        """
        new = []
        for block, name in zip(table.blocks[first:], names, strict=False):
            if name not in self._block_of and block not in self._name_of:
                self._block_of[name], self._name_of[block] = block, name
                new.append(name)
        return new

    def free(self, table: Table) -> None:
        """The sequence is over. Last block first, so that the ends of prompts are evicted before their beginnings."""
        for block in reversed(table.blocks):
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            del self._refs[block]
            self._free[block] = None
            if block not in self._name_of:
                self._free.move_to_end(block, last=False)
        table.blocks, table.tokens = [], 0

    # --- inside -----------------------------------------------------------------------------------------------------

    def _hold(self, block: int) -> None:
        if block in self._refs:
            self._refs[block] += 1
        else:
            del self._free[block]
            self._refs[block] = 1

    def _take(self) -> int:
        first = next(iter(self._free), None)
        if self._unused and (first is None or first in self._name_of):
            block = self.size - self._unused
            self._unused -= 1
        else:
            block = self._free.popitem(last=False)[0]
            name = self._name_of.pop(block, None)
            if name is not None:
                del self._block_of[name]
                self.evicted.append(name)
        self._refs[block] = 1
        return block

    def check_integrity(self) -> None:
        """Raises AssertionError unless each block is in exactly one place and names lead both ways."""
        seen = self.size - self._unused
        assert not self._refs.keys() & self._free.keys(), "a block is free and in use"
        assert len(self._refs) + len(self._free) == seen, (
            f"{seen} blocks, {len(self._refs)} used, {len(self._free)} free"
        )
        assert all(count > 0 for count in self._refs.values()), "a block in use has no user"
        assert {block: name for name, block in self._block_of.items()} == self._name_of, "names and blocks disagree"
        named = [block in self._name_of for block in self._free]
        assert named == sorted(named), "an unnamed block waits behind a cached one"
