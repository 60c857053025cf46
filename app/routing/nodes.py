"""Which replicas are on which nodes, and so beside which cache servers: L1 is a node's."""

from app.routing.roster import slots_of
from app.routing.tier_index import TierIndex


class Nodes:
    """Not thread safe: its owner is a policy. `l1`: the index of what the nodes' cache servers hold; a node is its
    owner's name there."""

    def __init__(self, l1: TierIndex) -> None:
        self._l1 = l1
        self._nodes: dict[int, str] = {}
        self._on_node: dict[str, int] = {}
        # (state of L1's owners, the replicas beside them), until either changes.
        self._beside_all = (-1, 0)

    @property
    def slots(self) -> list[int]:
        """Replicas whose node is known."""
        return [*self._nodes]

    def add(self, slot: int, node: str) -> None:
        self._nodes[slot] = node
        self._on_node[node] = self._on_node.get(node, 0) | 1 << slot
        self._beside_all = (-1, 0)

    def remove(self, slot: int) -> None:
        node = self._nodes.pop(slot)
        self._on_node[node] ^= 1 << slot
        if not self._on_node[node]:
            del self._on_node[node]
        self._beside_all = (-1, 0)

    def beside(self, owners: int) -> int:
        """The mask of the replicas on these nodes (a mask of L1's owners). A hot prefix is on nearly all of them: then
        those without it are taken away."""
        others = self._l1.everyone ^ owners
        if others.bit_count() >= owners.bit_count():
            return self._on(owners)
        if self._beside_all[0] != self._l1.changes:
            self._beside_all = (self._l1.changes, self._on(self._l1.everyone))
        return self._beside_all[1] ^ self._on(others)

    def check_integrity(self) -> None:
        """Raises AssertionError if nodes and replicas disagree, or what is kept of them is out of date."""
        expected: dict[str, int] = {}
        for slot, node in self._nodes.items():
            expected[node] = expected.get(node, 0) | 1 << slot
        assert expected == self._on_node, "nodes and their replicas disagree"
        changes, beside = self._beside_all
        assert changes != self._l1.changes or beside == self._on(self._l1.everyone), "replicas beside L1 are stale"

    def _on(self, owners: int) -> int:
        found = 0
        for bit in slots_of(owners):
            found |= self._on_node.get(self._l1.owner(bit), 0)
        return found
