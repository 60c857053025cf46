"""Instance types by name, with what they have. Unknown ones are refused with the nearest known name."""

import difflib
from dataclasses import dataclass

from app.errors import ClusterError
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
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise ClusterError(f"instance type {name} is not known; {hint} (or add what it has to cluster/instances.yaml)")
    return Instance(name=name, **known[name])


def instances() -> list[Instance]:
    return [instance(name) for name in data("instances")]
