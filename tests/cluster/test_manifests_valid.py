"""Every object that is rendered, against the real schemas."""

from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from cluster.limits import RAYSERVICE_NAME
from cluster.render.bundle import Renderer
from tests.cluster import crds
from tests.cluster.conftest import NAMES

CUSTOM = {
    "RayService": "ray.io_rayservices.yaml",
    "InferenceEndpointConfig": "inference.sagemaker.aws.amazon.com_inferenceendpointconfigs.yaml",
}
# Kyverno's schema is not at hand; its policy is checked by comparing it with Kubernetes' own (test_admission.py).
NO_SCHEMA = {"MutatingPolicy"}


def objects(of: Renderer) -> list[dict[str, Any]]:
    checks = [of.check("shared-write"), of.check("shared-read", writer_node="node-a")]
    return [manifest for bundle in of.all() for manifest in bundle.objects] + checks


def test_core_kinds_are_valid_for_their_kubernetes(rendered: Renderer) -> None:
    for manifest in objects(rendered):
        if manifest["kind"] not in CUSTOM.keys() | NO_SCHEMA:
            kubernetes_validate.validate(manifest, rendered.config.kubernetes, strict=True)


def test_custom_resources_are_valid_by_their_definitions(rendered: Renderer) -> None:
    custom = [manifest for manifest in objects(rendered) if manifest["kind"] in CUSTOM]
    assert custom
    for manifest in custom:
        crds.validate(manifest, CUSTOM[manifest["kind"]])


def test_the_pod_templates_of_the_ray_service_are_valid_pods(rendered: Renderer) -> None:
    """The CRD's copy of the pod schema is laxer than Kubernetes' own."""
    for template in pod_templates(rendered):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, rendered.config.kubernetes, strict=True)


def test_the_check_of_custom_resources_finds_mistakes(fleet: Renderer) -> None:
    (service,) = [o for o in fleet.bundle("serving").objects if o["kind"] == "RayService"]
    wrong = {**service, "spec": {**service["spec"], "serveConfig": "x"}}
    with pytest.raises(jsonschema.ValidationError, match="serveConfig"):
        crds.validate(wrong, CUSTOM["RayService"])


def test_names_are_unique_and_short_enough(rendered: Renderer) -> None:
    names = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in objects(rendered)]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for _, _, name in names)


def test_the_longest_allowed_name_still_gives_valid_names(fleet: Renderer) -> None:
    config = fleet.config.model_copy(update={"name": "a" * RAYSERVICE_NAME})
    for manifest in objects(Renderer(config)):
        name = manifest["metadata"]["name"]
        # Pods of a StatefulSet carry the label NAME-HASH with a hash of up to ten.
        assert len(name) <= (52 if manifest["kind"] == "StatefulSet" else 63), name


def pod_templates(of: Renderer) -> list[dict[str, Any]]:
    (service,) = [o for o in of.bundle("serving").objects if o["kind"] == "RayService"]
    cluster = service["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]


def test_every_configuration_of_the_project_is_covered() -> None:
    assert {"g6e-fleet", "catalogue", "tensor-parallel-32b", "kind-cpu", "endpoint"} <= set(NAMES)
