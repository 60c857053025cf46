"""What of a load from L2 should stay in L1: rules beside each other on a trace of requests. Pure.

Several nodes take the requests in turn, in front of an L2 that keeps everything. Counted is what is loaded: the blocks
of a prompt's beginning that L2 has and the node's L1 has not. The node cache is the simulator's, with LMCache's
eviction.
"""

from collections.abc import Callable, Iterable, Sequence

from app.sim.tiers import NodeCache

ROOMS = (500, 2_000, 8_000, 30_000)
NODES = 4

# The blocks of a load -> for each whether it stays.
Rule = Callable[[Sequence[int]], list[bool]]


def nothing(loaded: Sequence[int]) -> list[bool]:
    """LMCache's own: each loaded chunk is dropped after one use."""
    return [False] * len(loaded)


def loaded_before() -> Rule:
    """What this node has loaded once already stays."""
    seen: set[int] = set()

    def rule(loaded: Sequence[int]) -> list[bool]:
        kept = [block in seen for block in loaded]
        seen.update(loaded)
        return kept

    return rule


def loads(prompts: Iterable[Sequence[int]], room: int, rule: Callable[[NodeCache], Rule]) -> int:
    """Blocks loaded from L2, with room for `room` blocks in each node's L1; `rule` is made for each node."""
    nodes = [NodeCache(room) for _ in range(NODES)]
    rules = [rule(node) for node in nodes]
    pool: set[int] = set()
    count = 0
    for turn, blocks in enumerate(prompts):
        node = nodes[turn % NODES]
        known = next((at for at, block in enumerate(blocks) if block not in pool), len(blocks))
        loaded = [block for block in blocks[:known] if block not in node]
        count += len(loaded)
        dropped = {block for block, kept in zip(loaded, rules[turn % NODES](loaded), strict=True) if not kept}
        node.store([block for block in blocks if block not in dropped])
        pool.update(blocks)
    return count


def compare(prompts: Sequence[Sequence[int]], rooms: Sequence[int] = ROOMS) -> list[dict[str, int]]:
    """A row for each size of L1: blocks, and how many were loaded under each rule. `tierserve` is what serves."""
    return [
        {
            "l1 blocks": room,
            "keep nothing": loads(prompts, room, lambda _: nothing),
            "keep what was loaded before": loads(prompts, room, lambda _: loaded_before()),
            "tierserve": loads(prompts, room, lambda node: node.retainer.choose),
        }
        for room in rooms
    ]
