"""helm that prints small charts: the kinds that matter, without helm."""

from collections.abc import Sequence
from typing import Any

import yaml

from cluster.helm import Output


def definition(group: str, kind: str, plural: str, scope: str = "Namespaced", version: str = "v1") -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": version, "served": True, "storage": True}],
        },
    }


def _workload(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def objects(chart: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    if chart == "kuberay-operator":
        return [definition("ray.io", "RayService", "rayservices"), _workload("Deployment", "kuberay-operator")]
    if chart == "curvine":
        size = values["master"]["storage"]["meta"]["size"]
        claims = [{"metadata": {"name": "meta"}, "spec": {"resources": {"requests": {"storage": size}}}}]
        flags = {"data": {"format": str(values["cluster"]["formatMaster"])}}
        return [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "curvine-config"}, **flags},
            _workload("StatefulSet", "curvine-master", replicas=1, volumeClaimTemplates=claims),
            _workload("StatefulSet", "curvine-worker", replicas=values["worker"]["replicas"]),
        ]
    if chart == "curvine-csi":
        return [_workload("Deployment", "curvine-csi-controller"), _workload("DaemonSet", "curvine-csi-node")]
    return [definition("policies.kyverno.io", "MutatingPolicy", "mutatingpolicies", "Cluster")]


class FakeHelm:
    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.values: list[dict[str, Any]] = []

    def __call__(self, command: Sequence[str], stdin: str) -> Output:
        self.commands.append(list(command))
        self.values.append(yaml.safe_load(stdin))
        return Output(0, yaml.safe_dump_all(objects(command[3], self.values[-1])), "")
