"""Kubernetes objects as plain mappings, and the little that is done to all of them."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.render.template import fill

Manifest = dict[str, Any]

PART_OF = {"app.kubernetes.io/part-of": "tierserve"}
STAGE_LABEL = "tierserve.io/stage"

# Kinds without a namespace. Only for printing what has none; when applying, the server is asked.
CLUSTER_KINDS = {
    "APIService",
    "CSIDriver",
    "ClusterCleanupPolicy",
    "ClusterPolicy",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "IngressClass",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingPolicy",
    "MutatingWebhookConfiguration",
    "Namespace",
    "PersistentVolume",
    "PriorityClass",
    "StorageClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
}

# What must be there before what; everything else (custom resources, policies) comes after.
_ORDER = [
    "Namespace",
    "CustomResourceDefinition",
    "PriorityClass",
    "StorageClass",
    "CSIDriver",
    "PersistentVolume",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "NetworkPolicy",
    "Service",
    "DaemonSet",
    "Deployment",
    "StatefulSet",
    "PodDisruptionBudget",
    "PersistentVolumeClaim",
    "Job",
]


@dataclass(frozen=True, order=True)
class Ref:
    """Which object: enough to get or delete it."""

    api_version: str
    kind: str
    namespace: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def ref_of(manifest: Mapping[str, Any]) -> Ref:
    meta = manifest["metadata"]
    return Ref(manifest["apiVersion"], manifest["kind"], meta.get("namespace"), meta["name"])


def rank(kind: str) -> int:
    """Position of a kind when applying; deletion goes the other way."""
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def in_order(manifests: Iterable[Manifest]) -> list[Manifest]:
    return sorted(manifests, key=lambda manifest: rank(manifest["kind"]))


def read(path: Path, values: Mapping[str, Any]) -> list[Manifest]:
    """The documents of a file with their placeholders filled."""
    documents = yaml.safe_load_all(path.read_text())
    return [fill(document, values) for document in documents if document is not None]


def labelled(manifest: Manifest, stage: str) -> Manifest:
    """A copy that says which stage made it. Pod templates are left alone: labels there would restart pods."""
    meta = dict(manifest["metadata"])
    meta["labels"] = {**(meta.get("labels") or {}), **PART_OF, STAGE_LABEL: stage}
    return {**manifest, "metadata": meta}


def to_yaml(manifests: Iterable[Manifest]) -> str:
    return yaml.dump_all(manifests, Dumper=_Readable, sort_keys=False, explicit_start=True, width=10_000)


class _Readable(yaml.SafeDumper):
    """Without anchors, and with long texts as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Readable.add_representer(str, _text)
