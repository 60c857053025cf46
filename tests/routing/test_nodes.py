"""Replicas come, go and move while nodes' cache servers do: who is beside whom is always as a plain search finds it."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.routing.nodes import Nodes
from app.routing.tier_index import Scope, Stored, TierBatch, TierIndex

SLOTS = st.integers(0, 7)
NODES = st.sampled_from(["n0", "n1", "n2", "n3"])


class Machine(RuleBasedStateMachine):
    """Against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.l1 = TierIndex()
        self.nodes = Nodes(self.l1)
        self.there: dict[int, str] = {}
        self.lives = 0

    @rule(slot=SLOTS, node=NODES)
    def a_replica_comes(self, slot: int, node: str) -> None:
        if slot not in self.there:
            self.there[slot] = node
            self.nodes.add(slot, node)

    @rule(slot=SLOTS)
    def a_replica_goes(self, slot: int) -> None:
        if self.there.pop(slot, None) is not None:
            self.nodes.remove(slot)

    @rule(node=NODES)
    def a_cache_server_starts(self, node: str) -> None:
        self.lives += 1
        self.l1.apply(TierBatch(node, str(self.lives), 0, 0.0, [Stored(Scope(""), [b"chunk"])]))

    @rule(node=NODES)
    def a_cache_server_goes(self, node: str) -> None:
        self.l1.drop(node)

    @rule(some=st.integers(0, 15))
    def asked(self, some: int) -> None:
        owners = some & self.l1.everyone
        names = {self.l1.owner(bit) for bit in range(owners.bit_length()) if owners >> bit & 1}
        expected = sum(1 << slot for slot, node in self.there.items() if node in names)
        assert self.nodes.beside(owners) == expected

    @invariant()
    def whole(self) -> None:
        self.nodes.check_integrity()
        assert set(self.nodes.slots) == set(self.there)


TestNodes = Machine.TestCase
TestNodes.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
