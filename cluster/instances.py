"""Instance types by name, with what they have. Unknown ones are refused with the nearest known name."""

from dataclasses import dataclass

from app.errors import ClusterError
from app.names import hint
from cluster.files import data


@dataclass(frozen=True)
class Instance:
    name: str
    vcpus: int
    memory_gib: int
    gpu: str | None
    gpus: int
    gpu_mib: int
    nvme_gb: int

    @property
    def gpu_gib(self) -> float:
        """Memory of one GPU."""
        return self.gpu_mib / 1024


def instance(name: str) -> Instance:
    """Raises ClusterError for a type that is not in instances.yaml."""
    known = data("instances")
    if name not in known:
        raise ClusterError(
            f"instance type {name} is not known; {hint(name, known)} (or add what it has to cluster/instances.yaml)"
        )
    return Instance(name=name, **known[name])


def instances() -> list[Instance]:
    return [instance(name) for name in data("instances")]
