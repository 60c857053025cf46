"""How large the Ray pods are: what an instance has, minus what others on the node need. Refuses what cannot fit."""

from dataclasses import dataclass
from math import floor

from app.errors import ClusterError
from cluster.config import ClusterConfig
from cluster.instances import Instance, instance
from cluster.limits import quantity
from cluster.render.serve_document import Demand, ServeDocument

GIB = 1 << 30

# What stays free on each node, in CPUs and GiB. Requests of the charts (cluster/charts) where they have any.
_SYSTEM_CPU, _SYSTEM_SHARE = 1.0, 0.04  # kubelet, system daemons; share of the memory
_CURVINE_WORKER = (2.0, 4.0)
_CURVINE_MASTER = (1.0, 2.0)
_AGENTS = (1.0, 2.0)  # FUSE and CSI pods, read-ahead, health monitoring, Redis

_OBJECT_STORE_GIB = 4.0
_SHM_SPARE_GIB = 2.0  # NCCL and vLLM's executor
_ENGINE_HOST_GIB = 8.0  # one engine's process beside KV and weights; 4.5 were measured for a small CPU engine


@dataclass(frozen=True)
class WorkerSize:
    """Of one worker pod."""

    cpu: str
    memory: str
    gpus: int
    shm: str
    object_store_bytes: int


def worker_size(config: ClusterConfig, serve: ServeDocument) -> WorkerSize:
    """Raises ClusterError with the numbers when the serve file asks for more than the fleet has."""
    demand = serve.demand()
    machine = instance(config.workers.instance_type) if config.workers.instance_type else None
    cpu = config.workers.cpu or _cpu_left(machine, config)
    memory = config.workers.memory or _memory_left(machine, config)
    gpus = machine.gpus if machine and not demand.on_cpu else 0
    _check_gpus(config, serve, demand, gpus)
    _check_cpus(config, serve, demand, float(quantity(cpu)))
    small = float(quantity(memory)) / GIB
    store = min(_OBJECT_STORE_GIB, small / 8)
    _check_memory(serve, demand, small, store, gpus)
    _check_pool(config, serve, machine)
    shm = store + _SHM_SPARE_GIB + (demand.l1_gib if demand.on_cpu else 0)
    return WorkerSize(cpu, memory, gpus, f"{floor(shm * 1024)}Mi", int(store * GIB))


def _cpu_left(machine: Instance | None, config: ClusterConfig) -> str:
    assert machine is not None, "the configuration checks that a size is given without an instance type"
    others = _SYSTEM_CPU + _CURVINE_WORKER[0] + _CURVINE_MASTER[0] + _AGENTS[0] + _head(config)[0]
    left = floor(machine.vcpus - others)
    if left < 1:
        raise ClusterError(f"{machine.name} has {machine.vcpus} vCPUs and {others:g} go to others: take a larger type")
    return str(left)


def _memory_left(machine: Instance | None, config: ClusterConfig) -> str:
    assert machine is not None, "the configuration checks that a size is given without an instance type"
    taken = (config.tiered_storage.memory_percent / 100) if config.tiered_storage else 0
    others = _CURVINE_WORKER[1] + _CURVINE_MASTER[1] + _AGENTS[1] + _head(config)[1]
    left = floor(machine.memory_gib * (1 - _SYSTEM_SHARE - taken) - others)
    if left < 4:
        raise ClusterError(f"{machine.name}: {machine.memory_gib} GiB leave {left} GiB for Ray: take a larger type")
    return f"{left}Gi"


def _head(config: ClusterConfig) -> tuple[float, float]:
    if not config.head.on_worker_nodes:
        return 0.0, 0.0
    return float(quantity(config.head.cpu)), float(quantity(config.head.memory)) / GIB


def _check_gpus(config: ClusterConfig, serve: ServeDocument, demand: Demand, gpus: int) -> None:
    nodes = config.workers.count
    if demand.gpus_per_replica > gpus:
        raise ClusterError(
            f"{serve.path.name}: a replica needs {demand.gpus_per_replica} GPUs in one node, "
            f"{config.workers.instance_type or 'a worker'} has {gpus}"
        )
    if demand.gpus > gpus * nodes:
        raise ClusterError(
            f"{serve.path.name}: its replicas need {demand.gpus} GPUs, {nodes} x {config.workers.instance_type} "
            f"have {gpus * nodes}: raise workers.count or lower `replicas`"
        )


def _check_cpus(config: ClusterConfig, serve: ServeDocument, demand: Demand, cpu: float) -> None:
    if demand.cpus > cpu * config.workers.count:
        raise ClusterError(
            f"{serve.path.name}: replicas and ingresses reserve {demand.cpus:g} CPUs, {config.workers.count} workers "
            f"have {cpu:g} each: raise workers.count or workers.cpu"
        )


def _check_pool(config: ClusterConfig, serve: ServeDocument, machine: Instance | None) -> None:
    """Curvine evicts nothing that has not expired: a pool larger than its disks ends in failed writes."""
    storage, nodes = config.storage, config.workers.count
    held = float(quantity(storage.claim))
    if storage.backend == "curvine":
        per_node = float(quantity(storage.nvme_size))
        if machine is not None and per_node > machine.nvme_gb * 1e9:
            raise ClusterError(
                f"storage.nvme_size {storage.nvme_size} is more than the {machine.nvme_gb} GB of local NVMe that "
                f"{machine.name} has"
            )
        held = per_node * nodes
    wanted = max((model.l2.capacity_gib for model in serve.models if model.l2.enabled), default=0) * GIB
    if wanted > held:
        raise ClusterError(
            f"{serve.path.name}: l2.capacity_gib {wanted / GIB:g} is more than the {held / GIB:g} GiB that the shared "
            "storage has: lower it, or raise storage.nvme_size (storage.claim for hostpath) or workers.count"
        )


def _check_memory(serve: ServeDocument, demand: Demand, gib: float, store: float, gpus: int) -> None:
    engines = 1 if demand.on_cpu else gpus // max(1, demand.gpus_per_replica)  # Serve may put as many on one node
    l0 = sum(model.l0.gib or 1 for model in serve.models) if demand.on_cpu else 0
    host = _ENGINE_HOST_GIB * engines if not demand.on_cpu else 4.5
    needed = demand.l1_gib + store + host + l0
    if needed > gib:
        raise ClusterError(
            f"{serve.path.name}: L1 ({demand.l1_gib:g} GiB), object store ({store:g}), engines ({host + l0:g}) need "
            f"{needed:g} GiB on a node, a worker pod has {gib:g}: lower l1.gib or take a larger type"
        )
