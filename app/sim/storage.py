"""L1 and L2 of the whole fleet with the links between them: where KV comes from and where it goes.

engine --PCIe--> L1 of its node --write link--> L2        after a prefill, behind the answer
L2 --pool, node's read link--> L1 --PCIe--> engine        when a request is admitted
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.cost import CostModel
from app.sim.events import Publisher
from app.sim.pipe import Pipe
from app.sim.spec import FleetSpec
from app.sim.tiers import NodeCache, SharedPool


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is fetched for a request, in blocks, and when it will be in the engine."""

    l1: int
    l2: int
    there_at: float


class _Node:
    def __init__(self, spec: FleetSpec, l1_blocks: int, cost: CostModel) -> None:
        self.cache = NodeCache(l1_blocks) if l1_blocks > 0 else None
        self.read = Pipe(spec.l2_read_bytes_s)
        self.write = Pipe(spec.l2_write_bytes_s)
        self.cost = cost


class Storage:
    """`later` calls back at a simulated time. `prompt` is the length that the cost model's first beliefs are for."""

    def __init__(
        self,
        spec: FleetSpec,
        block_tokens: int,
        prompt: int,
        publisher: Publisher,
        later: Callable[[float, Callable[[float], None]], None],
    ) -> None:
        self._spec, self._block_tokens, self._publisher, self._later = spec, block_tokens, publisher, later
        self._block_bytes = block_tokens * spec.speed.kv_bytes
        self._prompt = prompt
        self._nodes = [self._new_node() for _ in range(spec.nodes)]
        room = int(spec.l2_bytes * spec.nodes / self._block_bytes)
        self._pool = SharedPool(room) if room > 0 else None
        self._pool_read = Pipe(spec.l2_read_bytes_s * spec.nodes)
        self._pcie = [Pipe(spec.speed.l1_bytes_s) for _ in range(spec.replicas)]
        self.dropped = 0
        """Blocks that were not stored in L2 because its link was too far behind."""

    @property
    def l2_read_bytes(self) -> int:
        return self._pool_read.carried

    @property
    def l2_written_bytes(self) -> int:
        return sum(node.write.carried for node in self._nodes)

    def node_died(self, node: int) -> None:
        """L1 is lost with its node; what other nodes see of L2 stays."""
        self._nodes[node] = self._new_node()
        self._publisher.node_died(node)

    def load(self, node: int, replica: int, names: Sequence[int], now: float) -> Loaded:
        """Fetch from the beginning of `names` what is there without a gap and worth it, by production's rule."""
        home, block = self._nodes[node], self._block_tokens
        l1, l2 = self._find(home, names)
        if l2 and not home.cost.worth_loading("l2", l2 * block):
            # Only L1's part before the first gap can be used without what L2 would have filled in.
            l1, l2 = self._only_l1(home, names), 0
        if l1 and not home.cost.worth_loading("l1", l1 * block):
            l1 = l2 = 0
        if not l1 + l2:
            return Loaded(0, 0, now)
        there_at = self._pcie[replica].send(now, (l1 + l2) * self._block_bytes)
        if home.cache is not None:
            home.cache.touch(names[: l1 + l2])
        if l2:
            there_at = max(there_at, self._from_pool(node, home, names[: l1 + l2], l2, now))
        return Loaded(l1, l2, there_at)

    def store(self, node: int, first: int, names: Sequence[int], now: float) -> None:
        """An engine has computed these; `first` is the place of the first one in its prompt."""
        home = self._nodes[node]
        self._keep(node, home, names)
        if self._pool is None:
            return
        lacking = [name for name in names if name not in self._pool]
        if home.write.backlog_s(now) > self._spec.write_backlog_s:
            self.dropped += len(lacking)
            return
        done = home.write.send(now, len(lacking) * self._block_bytes)
        self._later(done, lambda at: self._publish(first, names, at))

    def observe_prefill(self, node: int, tokens: int, seconds: float) -> None:
        self._nodes[node].cost.observe_prefill(tokens, seconds)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _find(self, home: _Node, names: Sequence[int]) -> tuple[int, int]:
        l1 = l2 = 0
        for name in names:
            if home.cache is not None and name in home.cache:
                l1 += 1
            elif self._pool is not None and name in self._pool:
                l2 += 1
            else:
                break
        return l1, l2

    def _only_l1(self, home: _Node, names: Sequence[int]) -> int:
        for at, name in enumerate(names):
            if home.cache is None or name not in home.cache:
                return at
        return len(names)

    def _from_pool(self, node: int, home: _Node, names: Sequence[int], l2: int, now: float) -> float:
        assert self._pool is not None
        fetched = [name for name in names if home.cache is None or name not in home.cache]
        size = l2 * self._block_bytes
        done = max(home.read.send(now, size), self._pool_read.send(now, size)) + self._spec.l2_latency_s
        self._pool.used(fetched, now)
        home.cost.observe_load("l2", l2 * self._block_tokens, done - now)
        if home.cache is not None:
            keep = home.cache.retainer.choose(fetched)
            self._keep(node, home, [name for name, stays in zip(fetched, keep, strict=True) if stays])
        return done

    def _keep(self, node: int, home: _Node, names: Sequence[int]) -> None:
        if home.cache is not None:
            new, gone = home.cache.store(names)
            self._publisher.l1(node, new, gone)

    def _publish(self, first: int, names: Sequence[int], now: float) -> None:
        assert self._pool is not None
        self._publisher.l2(*self._pool.store(first, names, now))

    def _new_node(self) -> _Node:
        spec = self._spec
        cost = CostModel(spec.speed.prior(self._prompt, spec.l2_read_bytes_s))
        return _Node(spec, int(spec.l1_bytes / self._block_bytes), cost)

    def check_integrity(self) -> None:
        if self._pool is not None:
            self._pool.check_integrity()
        for node in self._nodes:
            node.cost.check_integrity()
            if node.cache is not None:
                node.cache.check_integrity()
