"""A radix tree over piece hashes that knows which replicas hold which prefix.

Three things make it fast. Piece hashes are chained (see prompt.py), so equal hashes mean equal prefixes: an edge of
any length is compared by its last piece, a mismatch inside an edge is found by bisection, and one dictionary from first
piece to node serves the whole tree without children tables. Holders are a bit mask. And nothing is searched: the
least recently used leaf comes from a heap whose entries are corrected when they surface.

Region map of a node; `start` is its parent's `end`:

    root ... parent |p[start] p[start+1] ... p[end-1]|  children start at `end`
                     `first`                  `last`
"""

import heapq
from array import array
from collections.abc import Sequence

import msgspec

from app.routing.roster import Roster

# What CPython 3.11 allocates per node beside its pieces, from sys.getsizeof and rounded up: node object, array
# header, dictionary entry with its key (amortised growth), heap entry with its tuple and numbers. Measured as a
# whole by `tierserve bench routing`.
_NODE_BYTES = 760
_PIECE_BYTES = 8


class _Node(msgspec.Struct, eq=False, gc=False):
    """Out of the garbage collector's sight: links go up only, so nothing here can lead back to it."""

    parent: "_Node | None"
    pieces: "array[int]"
    end: int
    last: int
    """pieces[-1]"""
    holders: int = 0
    last_use: int = 0
    heat: float = 0.0
    """Uses per half-life as of `touched`."""
    touched: float = 0.0
    children: int = 0


class Level(msgspec.Struct, frozen=True, gc=False):
    """One step of a match: up to `depth` pieces of the prompt are held by every replica in `holders`."""

    depth: int
    holders: int
    heat: float
    """Recent uses of this step, decayed to the time of the match."""
    last_use: int
    """The tree's tick when any replica last used this step."""
    forks: bool
    """Where it ends, another prompt goes on otherwise than this one does: what is up to there, several share."""


class PrefixTree:
    """Not thread safe: one owner calls it under its lock. Nothing here blocks; nothing raises except check_integrity.

    A replica holds a prefix if its bit is set on every step down to it (a prefix is useless without what is before it).
    """

    def __init__(self, roster: Roster, max_bytes: int = 64 << 20, half_life_s: float = 60.0) -> None:
        self._roster = roster
        self._max_bytes = max_bytes
        self._half_life_s = half_life_s
        self._root = _Node(None, array("Q"), 0, 0)
        self._nodes: dict[int, _Node] = {}
        # (last_use when pushed, first piece): one entry per leaf. A leaf used since is pushed back when it surfaces.
        self._leaves: list[tuple[int, int]] = []
        self._tick = 0
        self._bytes = 0
        self.evictions = 0
        roster.on_reclaim(self._clean)

    @property
    def bytes(self) -> int:
        """Estimated memory, never above `max_bytes` after a call."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._nodes)

    def match(self, pieces: Sequence[int], now: float) -> list[Level]:
        """The steps down the prompt, deepest last, each with the live replicas that hold it. Changes nothing.

        O(nodes on the path + log of the last edge), whatever the prompt's length or the fleet's size.
        """
        levels: list[Level] = []
        nodes, holders = self._nodes, self._roster.live
        depth, count = 0, len(pieces)
        node = nodes.get(pieces[0]) if count else None
        while node is not None and (holders := holders & node.holders):
            end, following, forks = node.end, None, False
            if end > count or pieces[end - 1] != node.last:
                end = depth + _agreement(node.pieces, pieces, depth)
                forks = end < count
            elif end < count:
                following = nodes.get(pieces[end])
                forks = node.children > (following is not None)
            levels.append(Level(end, holders, self._heat(node, now), node.last_use, forks))
            node, depth = following, end
        return levels

    def insert(self, pieces: Sequence[int], slot: int, now: float, after: int = -1) -> tuple[int, int] | None:
        """Record that the replica in `slot` now holds the whole of `pieces`. May evict least recently used leaves.

        Returns what of it the replica held before: (depth, last use) of the deepest step that was used after tick
        `after`, None if there was none.
        """
        self._tick = tick = self._tick + 1
        nodes, bit, held, holding = self._nodes, 1 << slot, None, True
        node, depth, count = self._root, 0, len(pieces)
        while depth < count:
            child = nodes.get(pieces[depth])
            if child is None:
                self._add_leaf(node, array("Q", pieces[depth:]), count, bit, now)
                break
            if child.end > count or pieces[child.end - 1] != child.last:
                child = self._split(child, _agreement(child.pieces, pieces, depth))
            node, depth = child, child.end
            if holding:
                # Both its bit and the last use only get less going down.
                holding = child.holders & bit != 0 and child.last_use > after
                if holding:
                    held = depth, child.last_use
            child.holders |= bit
            child.heat, child.touched = self._heat(child, now) + 1.0, now
            child.last_use = tick
        if self._bytes > self._max_bytes:
            self._evict()
        return held

    def forget(self, pieces: Sequence[int], slot: int, depth: int) -> None:
        """The replica turned out to hold only the first `depth` pieces of this prompt: drop it from the rest of the
        path.

        O(path). Branches that leave the path below the cut keep their bit, but a match needs the bit on every step,
        so they are hidden as well; if another prompt puts the replica back on the shared step they show again, and
        the next report corrects them.
        """
        at, count, keep = 0, len(pieces), ~(1 << slot)
        while at < count:
            node = self._nodes.get(pieces[at])
            if node is None:
                break
            end = node.end
            full = end <= count and pieces[end - 1] == node.last
            reached = end if full else at + _agreement(node.pieces, pieces, at)
            if at < depth < reached:
                node, at = self._split(node, depth - at), depth
                continue
            if at >= depth:
                node.holders &= keep
            if not full:
                break
            at = end
        if self._bytes > self._max_bytes:
            self._evict()

    def check_integrity(self) -> None:
        """Raises AssertionError, with the numbers, if any count, link, mask or the byte bound is wrong."""
        children: dict[int, int] = {}
        total = 0
        for first, node in self._nodes.items():
            parent = node.parent
            assert parent is not None
            assert node.pieces[0] == first, "node filed under another piece"
            assert node.pieces[-1] == node.last, "last piece is stale"
            assert parent.end + len(node.pieces) == node.end, (
                f"depth {node.end} is not {parent.end} + {len(node.pieces)}"
            )
            if parent is not self._root:
                assert self._nodes.get(parent.pieces[0]) is parent, "parent is not in the tree"
                assert node.last_use <= parent.last_use, "a child was used after its parent"
            children[id(parent)] = children.get(id(parent), 0) + 1
            total += _NODE_BYTES + _PIECE_BYTES * len(node.pieces)
        for node in (self._root, *self._nodes.values()):
            assert node.children == children.get(id(node), 0), (
                f"{node.children} children counted, {children.get(id(node), 0)} found"
            )
        assert total == self._bytes, f"{self._bytes} bytes counted, {total} found"
        assert self._bytes <= self._max_bytes, f"{self._bytes} bytes over the bound of {self._max_bytes}"
        listed = {first for _, first in self._leaves}
        missing = [first for first, node in self._nodes.items() if not node.children and first not in listed]
        assert not missing, f"{len(missing)} leaves can never be evicted"

    # --- inside -----------------------------------------------------------------------------------------------------

    def _heat(self, node: _Node, now: float) -> float:
        age, heat = now - node.touched, node.heat
        return heat * 0.5 ** (age / self._half_life_s) if heat and age > 0 else heat

    def _add_leaf(self, parent: _Node, pieces: "array[int]", end: int, holders: int, now: float) -> None:
        first, tick = pieces[0], self._tick
        self._nodes[first] = _Node(parent, pieces, end, pieces[-1], holders, tick, 1.0, now)
        parent.children += 1
        self._bytes += _NODE_BYTES + _PIECE_BYTES * len(pieces)
        heapq.heappush(self._leaves, (tick, first))

    def _split(self, node: _Node, agreed: int) -> _Node:
        """Cut an edge after `agreed` pieces; return the new upper node. The lower keeps its children."""
        parent = node.parent
        assert parent is not None
        pieces, end = node.pieces[:agreed], parent.end + agreed
        upper = _Node(parent, pieces, end, pieces[-1], node.holders, node.last_use, node.heat, node.touched, 1)
        self._nodes[pieces[0]] = upper
        node.pieces = node.pieces[agreed:]
        node.parent = upper
        self._nodes[node.pieces[0]] = node
        if not node.children:
            heapq.heappush(self._leaves, (node.last_use, node.pieces[0]))
        self._bytes += _NODE_BYTES
        return upper

    def _evict(self) -> None:
        """Remove least recently used leaves until the bound holds. Amortised O(log leaves) per node ever inserted."""
        while self._bytes > self._max_bytes and self._leaves:
            pushed, first = heapq.heappop(self._leaves)
            node = self._nodes.get(first)
            if node is None or node.children:
                continue
            if node.last_use > pushed:
                heapq.heappush(self._leaves, (node.last_use, first))
                continue
            parent = node.parent
            assert parent is not None
            del self._nodes[first]
            self._bytes -= _NODE_BYTES + _PIECE_BYTES * len(node.pieces)
            self.evictions += 1
            parent.children -= 1
            if parent is not self._root and not parent.children:
                heapq.heappush(self._leaves, (parent.last_use, parent.pieces[0]))

    def _clean(self, dead: int) -> None:
        alive = ~dead
        for node in self._nodes.values():
            node.holders &= alive


def _agreement(edge: Sequence[int], pieces: Sequence[int], depth: int) -> int:
    """How many pieces of an edge the prompt agrees with from `depth` on. At least one: the edge was found by its
    first piece.

    Agreement is monotone, because each hash covers everything before it: so bisect.
    """
    low, high = 1, min(len(edge), len(pieces) - depth)
    while low < high:
        middle = (low + high + 1) // 2
        if edge[middle - 1] == pieces[depth + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
