"""The other configurations through the deployer: kind without AWS, autoscaling, the Inference Operator's endpoint."""

import pytest

from app.errors import ClusterError
from cluster.stages import run
from tests.cluster.conftest import World, renderer
from tests.cluster.fake_helm import definition

BUILD = run.chosen(["tiered-storage", "operators", "curvine", "serving"])


def world_of(name: str, **nodes: int) -> World:
    made = World(renderer(name).config)
    made.kube.version = made.config.kubernetes
    made.aws.nodes = {kind.replace("_", "."): count for kind, count in nodes.items()}
    digest = "0f" * 32
    made.kube.logs = {"tierserve-shared-write-x": digest, "tierserve-shared-read-x": digest}
    return made


def test_kind_asks_nothing_of_aws_and_comes_down_again() -> None:
    world = world_of("kind-cpu")
    others = set(world.kube.objects)
    run.apply(world.context(), BUILD)
    run.verify(world.context(), run.chosen(["operators", "curvine", "serving"]))
    assert run.status(world.context(), BUILD)
    assert world.aws.calls == []
    assert world.kube.names("RayService") == ["tierserve"]
    assert "curvine" not in world.kube.names("Namespace")
    run.destroy(world.context(), run.chosen([]))
    assert set(world.kube.objects) == others


def test_autoscaling_fleet() -> None:
    world = world_of("catalogue", ml_g6e_12xlarge=2)
    run.apply(world.context(), BUILD)
    assert run.status(world.context(), BUILD)
    assert world.kube.names("Role") == ["tierserve-autoscaler"]


def test_endpoint_gets_its_policy_first() -> None:
    world = world_of("endpoint", ml_g6e_4xlarge=4)
    # The Inference Operator's add-on brings its definition.
    operator = definition("inference.sagemaker.aws.amazon.com", "InferenceEndpointConfig", "inferenceendpointconfigs")
    world.kube.add(operator)
    endpoint = world.config.endpoint
    assert endpoint is not None
    world.config = world.config.model_copy(
        update={"endpoint": endpoint.model_copy(update={"image": "registry.example/vllm:1"})}
    )
    world.kube.endpoint_state = "DeploymentComplete"
    run.apply(world.context(), BUILD)
    assert "amazon-sagemaker-hyperpod-inference" in world.aws.addons
    applied = [path for method, path in world.kube.calls if method == "PATCH"]
    policy = next(i for i, path in enumerate(applied) if "mutatingpolicies/" in path)
    assert policy < next(i for i, path in enumerate(applied) if "inferenceendpointconfigs/" in path)
    run.destroy(world.context(), run.chosen([]))
    assert world.kube.of("MutatingPolicy") == world.kube.of("InferenceEndpointConfig") == []


def test_endpoint_and_fleet_need_nodes_for_both() -> None:
    world = world_of("endpoint", ml_g6e_4xlarge=3)
    world.config = world.config.model_copy(update={"image": "registry.example/tierserve:1"})
    endpoint = world.config.endpoint
    assert endpoint is not None
    changed = endpoint.model_copy(update={"image": "registry.example/vllm:1"})
    world.config = world.config.model_copy(update={"endpoint": changed})
    with pytest.raises(ClusterError, match=r"4 nodes of ml\.g6e\.4xlarge are needed, the HyperPod cluster has 3"):
        run.apply(world.context(), BUILD)
