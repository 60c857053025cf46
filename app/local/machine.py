"""Can this machine run this file? Asked before minutes are spent, answered in one line that names the remedy."""

import math
import os
import platform
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.errors import MachineError
from app.settings import GiB, ModelSettings, Settings, home
from app.tiers.cache_spec import CacheSpec, cache_spec

# Resident memory on CPU beside the KV pool, measured with SmolLM2-135M in float32: replica 1.1 GB, engine 1.9 GB.
_REPLICA_GIB = 3.0
_WEIGHTS_FREE_GIB = 0.6
# Ray's own processes, the ingress and the object store.
_BASE_GIB = 2.0
OBJECT_STORE_BYTES = 200 << 20


@dataclass(frozen=True)
class Machine:
    """What was read of the machine; tests make their own."""

    system: str
    architecture: str
    cpu_flags: frozenset[str]
    available_bytes: int
    shm_free_bytes: int
    home_free_bytes: int
    cpus: int
    gpus: int | None  # None: not known

    @classmethod
    def read(cls) -> "Machine":
        return cls(
            system=platform.system(),
            architecture=platform.machine(),
            cpu_flags=_cpu_flags(),
            available_bytes=psutil.virtual_memory().available,
            shm_free_bytes=free_bytes(Path("/dev/shm")),
            home_free_bytes=free_bytes(home()),
            cpus=os.cpu_count() or 1,
            gpus=_gpus(),
        )


def _cpu_flags() -> frozenset[str]:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


def _gpus(dev: Path = Path("/dev")) -> int | None:
    """NVIDIA's devices; under WSL they do not show one by one."""
    if (dev / "dxg").exists():
        return None
    return sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in dev.glob("nvidia*"))


def existing(path: Path) -> Path:
    """`path`, or the nearest of its parents that is there."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())


def free_bytes(path: Path) -> int:
    """Room where `path` is, or would be made."""
    return shutil.disk_usage(existing(path)).free


def needed_bytes(settings: Settings) -> int:
    """Memory that serving `settings` on CPU takes, /dev/shm included (it is memory too)."""
    l1_gib = sum(spec.l1_gib for spec in _pools(settings))
    return int((_BASE_GIB + l1_gib + sum(_replicas(m) * _replica_gib(m) for m in settings.models)) * GiB)


def _pools(settings: Settings) -> list[CacheSpec]:
    """One for each cache server: models that want the same one share it."""
    specs = [cache_spec(model, usage_stats=settings.usage_stats) for model in settings.models]
    return list({spec.key(""): spec for spec in specs if spec is not None}.values())


def _replicas(model: ModelSettings) -> int:
    return model.autoscaling.max_replicas if model.autoscaling else model.replicas or 1


def _replica_gib(model: ModelSettings) -> float:
    return _REPLICA_GIB + (model.l0.gib or 1.0) + max(0.0, _weights_gib(model) - _WEIGHTS_FREE_GIB)


def _weights_gib(model: ModelSettings) -> float:
    """Size of local weights; 0 where they are not on this disk yet, which the check then cannot count."""
    directory = Path(model.source or "")
    files = directory.glob("*.safetensors") if model.source and directory.is_dir() else ()
    return sum(file.stat().st_size for file in files) / GiB


def check_machine(settings: Settings, machine: Machine) -> None:
    """Raises MachineError for the first thing that is missing."""
    check_platform(settings, machine)
    check_room(settings, machine)


def check_platform(settings: Settings, machine: Machine) -> None:
    if machine.system != "Linux" or machine.architecture != "x86_64":
        raise MachineError(f"the CPU profile needs Linux on x86-64; this is {machine.system} on {machine.architecture}")
    if any(model.on_cpu for model in settings.models) and "avx2" not in machine.cpu_flags:
        raise MachineError("vLLM's CPU build needs AVX2, which this CPU lacks: use another machine, or the gpu extra")


def check_room(settings: Settings, machine: Machine) -> None:
    needed = needed_bytes(settings)
    if machine.available_bytes < needed:
        raise MachineError(
            f"this file needs about {needed / GiB:.1f} GiB of memory, {machine.available_bytes / GiB:.1f} are free:"
            " lower `replicas`, `l0.gib` or `l1.gib`, or close something"
        )
    shm = OBJECT_STORE_BYTES + sum(int(spec.l1_gib * GiB) for spec in _pools(settings) if spec.device == "cpu")
    if machine.shm_free_bytes < shm:
        raise MachineError(
            f"/dev/shm has {machine.shm_free_bytes / GiB:.1f} GiB free, L1 and Ray need {shm / GiB:.1f}: lower `l1.gib`"
            ", or enlarge it (mount -o remount,size=4G /dev/shm; in a container --shm-size)"
        )
    if machine.home_free_bytes < 3 * GiB:
        raise MachineError(
            f"{home()} has {machine.home_free_bytes / GiB:.1f} GiB free, 3 are needed: free some, or set TIERSERVE_HOME"
        )


def check_resources(applications: Iterable[Settings], machine: Machine) -> None:
    """Raises MachineError if Ray could never place all replicas on this machine: it would wait for ever."""
    every = list(applications)
    models = [model for settings in every for model in settings.models]
    gpus = sum(_replicas_at_start(model) * _width(model) for model in models if not model.on_cpu)
    if machine.gpus is not None and gpus > machine.gpus:
        have = f"has {machine.gpus}" if machine.gpus else "has none"
        raise MachineError(
            f"this file needs {gpus} GPU{'s' if gpus > 1 else ''}, this machine {have}: lower `replicas` or"
            " `tensor_parallel_size`, set `accelerator: cpu`, or deploy it to a cluster (serve deploy)"
        )
    cpus = sum(_replicas_at_start(model) * model.num_cpus for model in models if model.on_cpu)
    cpus += sum(settings.ingress.replicas * settings.ingress.num_cpus for settings in every)
    if cpus > machine.cpus:
        each = [f"{m.id} {_replicas_at_start(m)} x {m.num_cpus:g}" for m in models if m.on_cpu]
        raise MachineError(
            f"this file reserves {cpus:g} CPUs ({', '.join(each)}, the rest for ingresses), this machine has"
            f" {machine.cpus}: lower `num_cpus` (0.5 does for a replica: it reserves, it does not limit), `replicas` or"
            " `ingress.num_cpus`"
        )


def _replicas_at_start(model: ModelSettings) -> int:
    return model.autoscaling.min_replicas if model.autoscaling else model.replicas or 1


def _width(model: ModelSettings) -> int:
    """GPUs of one replica. What is no number is the engine arguments' check to refuse."""
    sizes = (model.engine.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
    return math.prod(size for size in sizes if isinstance(size, int))
