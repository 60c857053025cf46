"""Configuration -> the objects and charts of each stage. The only place that decides which file belongs where.

    operators   our namespace; KubeRay, and Kyverno where the endpoint needs it
    curvine     the shared L2: Curvine and its claim, or a host directory for kind
    serving     Ray, Redis, policies; the Inference Operator's endpoint if there is one
    verify      the Job that proves the shared cache

Stage 1 (tiered storage) has no objects: it is a property of the HyperPod cluster.
"""

from dataclasses import dataclass
from typing import Any

import yaml

from cluster.config import ClusterConfig
from cluster.files import MANIFESTS
from cluster.render.charts import Chart, chart
from cluster.render.objects import Manifest, in_order, labelled, read
from cluster.render.overlay import merge
from cluster.render.serve_document import ServeDocument, load_serve_document
from cluster.render.template import fill
from cluster.render.values import values

STAGES = ("operators", "curvine", "serving", "verify")


@dataclass(frozen=True)
class Bundle:
    """What one stage puts into the cluster: its own objects, and charts that helm turns into more."""

    stage: str
    objects: tuple[Manifest, ...]
    charts: tuple[Chart, ...] = ()


class Renderer:
    """Renders one configuration. Raises ClusterError when it cannot be served; touches nothing."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.serve: ServeDocument = load_serve_document(config.serve_file)
        self.values: dict[str, Any] = values(config, self.serve)

    def bundle(self, stage: str, **more: Any) -> Bundle:
        """`more` are values that are known only while a stage runs (`format`, `writer_node`, ...)."""
        known = self.values | more
        objects, charts = getattr(self, f"_{stage}")(known)
        records = [each.record(self.config.namespace) for each in charts]
        return Bundle(stage, tuple(labelled(o, stage) for o in in_order([*objects, *records])), tuple(charts))

    def all(self) -> list[Bundle]:
        return [self.bundle(stage) for stage in STAGES]

    def check(self, name: str, **more: Any) -> Manifest:
        """One of manifests/checks, for a verification to run."""
        (job,) = read(MANIFESTS / "checks" / f"{name}.yaml", self.values | more)
        return labelled(job, "verify")

    def secrets(self) -> list[dict[str, Any]]:
        """What manifests/serving/secrets.yaml asks for: names and keys, no values."""
        filled = fill(yaml.safe_load((MANIFESTS / "serving" / "secrets.yaml").read_text()), self.values)
        assert isinstance(filled, list), filled
        return [entry for entry in filled if entry["keys"]]

    def _operators(self, known: dict[str, Any]) -> tuple[list[Manifest], list[Chart]]:
        names = ["kuberay-operator"]
        if self.config.endpoint and not self.config.native_policy:
            names.append("kyverno")
        namespaces = [_namespace(known["charts"][name]["namespace"]) for name in names]
        return [*_files(known, "operators/namespace"), *namespaces], [chart(name, known) for name in names]

    def _curvine(self, known: dict[str, Any]) -> tuple[list[Manifest], list[Chart]]:
        if self.config.storage.backend == "hostpath":
            return _files(known, "storage/host-volume", "storage/claim", "storage/prepare-pool"), []
        own = ["ebs-class", "curvine-namespace", "curvine-class", "claim", "read-ahead", "prepare-pool"]
        objects = _files(known, *(f"storage/{name}" for name in own))
        return objects, [chart("curvine", known), chart("curvine-csi", known)]

    def _serving(self, known: dict[str, Any]) -> tuple[list[Manifest], list[Chart]]:
        own = ["identity", "redis", "disruption", "network"]
        overlays = []
        if int(known["workers"]["gpus"]) > 0:
            overlays.append("gpu")
        if known["workers"]["max_count"] > known["workers"]["count"]:
            overlays.append("autoscaling")
            own.append("autoscaler-identity")
        objects = _files(known, *(f"serving/{name}" for name in own))
        return [*objects, _ray_service(known, overlays), *self._endpoint(known)], []

    def _endpoint(self, known: dict[str, Any]) -> list[Manifest]:
        if self.config.endpoint is None:
            return []
        (mutation,) = read(MANIFESTS / "endpoint" / "mutation.yaml", known)
        known = known | {"policy": mutation}
        policy = "admission-policy" if self.config.native_policy else "kyverno-policy"
        (endpoint,) = _files(known, "endpoint/endpoint")
        if self.config.endpoint.commit:
            endpoint["spec"]["modelSourceConfig"]["huggingFaceModel"]["commitSHA"] = self.config.endpoint.commit
        # The policy first: pods made before it would run without L2.
        return [*_files(known, f"endpoint/{policy}"), endpoint]

    def _verify(self, known: dict[str, Any]) -> tuple[list[Manifest], list[Chart]]:
        return _files({"probe_arguments": self.probe_arguments()} | known, "checks/probe"), []

    def probe_arguments(self, *, bench: bool = False) -> list[str]:
        """What the probe is told: where the first application answers, which model, how long its chunks are."""
        application = self.serve.applications[0]
        model = application.settings.models[0]
        name, prefix = self.config.name, application.route_prefix.rstrip("/")
        return [
            *("--url", f"http://{name}-serve-svc:8000{prefix}", "--dashboard", f"http://{name}-head-svc:8265"),
            *("--application", application.name, "--model", model.id, "--chunk-tokens", str(model.l1.chunk_tokens)),
            *(["--bench"] if bench else []),
        ]


def _files(known: dict[str, Any], *names: str) -> list[Manifest]:
    return [manifest for name in names for manifest in read(MANIFESTS / f"{name}.yaml", known)]


def _ray_service(known: dict[str, Any], overlays: list[str]) -> Manifest:
    (service,) = _files(known, "serving/rayservice")
    for name in overlays:
        (overlay,) = _files(known, f"serving/overlays/{name}")
        service = merge(service, overlay)
    return service


def _namespace(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
