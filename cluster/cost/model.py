"""The arithmetic of a plan: pure, from facts and choices, each step a formula that is printed with the result."""

from dataclasses import dataclass
from math import ceil, floor

from cluster.instances import Instance

GIB = 1 << 30

FORMULAS = """\
weights        = parameters x 2 bytes (bfloat16)
KV per token   = 2 (K and V) x layers x KV heads x head dimension x 2 bytes
GPUs/replica   = smallest power of two with  GPUs x GPU memory x utilization >= weights + one context
L0 tokens      = (GPUs/replica x GPU memory x utilization - weights) / KV per token,  per replica
in flight      = concurrency x context tokens
replicas       = ceil(in flight / L0 tokens);   nodes = ceil(replicas / replicas per node)
L1 tokens      = nodes x L1 GiB per node / KV per token
L2 tokens      = nodes x NVMe x share given to Curvine / KV per token
hit rate at Ln = reuse x min(1, tokens of the largest of L0..Ln / working set)  (every reused token equally likely)
prefill left   = 1 - hit rate                                             (share of prompt tokens still to compute)"""


@dataclass(frozen=True)
class Model:
    """What the arithmetic needs of a model. Two bytes per weight and per KV element."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    parameters: float

    @property
    def weight_bytes(self) -> float:
        return self.parameters * 2

    @property
    def kv_bytes(self) -> int:
        """Per token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


@dataclass(frozen=True)
class Load:
    """What is asked of the fleet."""

    context: int
    concurrency: int
    reuse: float
    working_set: int
    utilization: float = 0.9
    l1_share: float = 0.4
    l2_share: float = 0.7


@dataclass(frozen=True)
class Plan:
    """A fleet of one instance type that holds the load, and what its tiers hold."""

    instance: str
    nodes: int
    gpus_per_replica: int
    replicas: int
    l0_tokens: int
    l1_tokens: int
    l2_tokens: int
    hit_l0: float
    hit_l1: float
    hit_l2: float
    usd_per_hour: float

    @property
    def prefill_left(self) -> float:
        return 1 - self.hit_l2

    def usd_per_stream_hour(self, concurrency: int) -> float:
        return self.usd_per_hour / concurrency


def gpus_per_replica(model: Model, machine: Instance, load: Load) -> int | None:
    """None when all GPUs of one node do not hold the weights and one context."""
    needed = model.weight_bytes + model.kv_bytes * load.context
    width = 1
    while width <= machine.gpus:
        # Tensor parallelism splits KV heads: more GPUs than heads would hold copies, not more tokens.
        if width <= model.kv_heads and width * machine.gpu_gib * GIB * load.utilization >= needed:
            return width
        width *= 2
    return None


def plan(model: Model, machine: Instance, load: Load, usd_per_hour: float) -> Plan | None:
    """The smallest fleet of this type that holds the load; None when the model does not fit a node."""
    width = gpus_per_replica(model, machine, load)
    if width is None:
        return None
    room = width * machine.gpu_gib * GIB * load.utilization - model.weight_bytes
    per_replica = floor(room / model.kv_bytes)
    replicas = max(1, ceil(load.context * load.concurrency / per_replica))
    nodes = ceil(replicas / (machine.gpus // width))
    l0 = replicas * per_replica
    l1 = floor(nodes * machine.memory_gib * GIB * load.l1_share / model.kv_bytes)
    l2 = floor(nodes * machine.nvme_gb * 1e9 * load.l2_share / model.kv_bytes)
    hits = [load.reuse * min(1.0, held / load.working_set) for held in (l0, max(l0, l1), max(l0, l1, l2))]
    return Plan(
        instance=machine.name,
        nodes=nodes,
        gpus_per_replica=width,
        replicas=replicas,
        l0_tokens=l0,
        l1_tokens=l1,
        l2_tokens=l2,
        hit_l0=hits[0],
        hit_l1=hits[1],
        hit_l2=hits[2],
        usd_per_hour=nodes * usd_per_hour,
    )
