"""Helm charts of a stage: which, and with what values. helm itself renders them (cluster/helm.py)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from cluster.files import CHARTS, data
from cluster.render.objects import Manifest
from cluster.render.template import fill


@dataclass(frozen=True)
class Chart:
    name: str
    repository: str
    version: str
    namespace: str
    values: Mapping[str, Any]

    def record(self, namespace: str) -> Manifest:
        """What was asked of helm, kept in the cluster beside the result."""
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"tierserve-chart-{self.name}", "namespace": namespace},
            "data": {
                "chart": self.name,
                "repository": self.repository,
                "version": self.version,
                "namespace": self.namespace,
                "values.yaml": yaml.safe_dump(dict(self.values), sort_keys=False),
            },
        }


def chart(name: str, values: Mapping[str, Any]) -> Chart:
    pin = data("versions")["charts"][name]
    filled = fill(yaml.safe_load((CHARTS / f"{name}.yaml").read_text()), values)
    return Chart(name, pin["repository"], str(pin["version"]), pin["namespace"], filled)
