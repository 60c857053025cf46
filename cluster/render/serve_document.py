"""The serve file as the cluster sees it: its text (for serveConfigV2), and what its settings need of the machines."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from app.errors import ClusterError, SettingsError
from app.local.serve_file import AppEntry, load_serve_file
from app.settings import ModelSettings


@dataclass(frozen=True)
class Demand:
    """What all applications of a serve file ask for at their smallest size, and the host memory of L1 per node."""

    gpus: int
    gpus_per_replica: int
    cpus: float
    l1_gib: float
    on_cpu: bool


@dataclass(frozen=True)
class ServeDocument:
    path: Path
    text: str
    applications: tuple[AppEntry, ...]

    @property
    def models(self) -> list[ModelSettings]:
        return [model for application in self.applications for model in application.settings.models]

    @property
    def api_key_variables(self) -> list[str]:
        """Environment variables that hold API keys, each once, in the file's order."""
        keys = (key.key_env for application in self.applications for key in application.settings.auth.api_keys)
        return list(dict.fromkeys(key for key in keys if key is not None))

    @property
    def l2_pools(self) -> list[PurePosixPath]:
        """Directories of the L2 pools, each once."""
        pools = (PurePosixPath(model.l2.directory) for model in self.models if model.l2.enabled)
        return list(dict.fromkeys(pools))

    def demand(self) -> Demand:
        models = self.models
        widths = [_width(model) for model in models]
        ingress = sum(a.settings.ingress.replicas * a.settings.ingress.num_cpus for a in self.applications)
        return Demand(
            gpus=sum(_replicas(model) * width for model, width in zip(models, widths, strict=True)),
            gpus_per_replica=max(widths),
            cpus=ingress + sum(_replicas(model) * _cpus(model) for model in models),
            l1_gib=sum(_l1_gib(application) for application in self.applications),
            on_cpu=all(model.on_cpu for model in models),
        )


def load_serve_document(path: Path) -> ServeDocument:
    """Raises ClusterError, with the file named, for anything that would not deploy."""
    try:
        parsed = load_serve_file(path)
    except SettingsError as error:
        raise ClusterError(str(error)) from None
    return ServeDocument(path, path.read_text(), parsed.applications)


def _replicas(model: ModelSettings) -> int:
    return model.autoscaling.min_replicas if model.autoscaling else model.replicas or 1


def _width(model: ModelSettings) -> int:
    """GPUs of one replica."""
    if model.on_cpu:
        return 0
    return int(model.engine.get("tensor_parallel_size", 1)) * int(model.engine.get("pipeline_parallel_size", 1))


def _cpus(model: ModelSettings) -> float:
    # Ray Serve LLM reserves a CPU beside each GPU of a replica (its default placement group).
    return model.num_cpus if model.on_cpu else _width(model)


def _l1_gib(application: AppEntry) -> float:
    """Models of an application with equal tiers share a cache server on each node; others have their own."""
    tiers = {
        (m.l1.model_dump_json(), m.l2.model_dump_json(), m.on_cpu): m.l1.gib
        for m in application.settings.models
        if m.l1.enabled
    }
    return sum(tiers.values())
