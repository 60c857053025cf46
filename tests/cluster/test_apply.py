"""The deployer against a cluster in memory: from nothing to served, again, and back to nothing."""

import pytest

from app.errors import ClusterError
from cluster.stages import run
from tests.cluster.conftest import World

ALL = run.chosen([])
# Without the proof: that needs engines (test_probe.py has it).
BUILD = run.chosen(["tiered-storage", "operators", "curvine", "serving"])


def test_from_nothing_to_served(world: World) -> None:
    run.apply(world.context(), BUILD)
    assert run.status(world.context(), BUILD)
    assert world.kube.names("RayService") == ["tierserve"]
    assert world.aws.tiered == {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 20}
    assert "aws-ebs-csi-driver" in world.aws.addons
    assert "amazon-sagemaker-hyperpod-inference" not in world.aws.addons


def test_a_second_apply_changes_nothing(world: World) -> None:
    run.apply(world.context(), BUILD)
    before = {path: dict(o) for path, o in world.kube.objects.items()}
    world.said.clear()
    run.apply(world.context(), BUILD)
    changed = {p for p, o in world.kube.objects.items() if "inventory" not in p and o != before.get(p)}
    assert changed == set()
    assert not [line for line in world.said if line.strip().startswith(("created", "changed", "deleted"))]
    assert world.aws.names("UpdateCluster", "CreateAddon").count("UpdateCluster") == 1


def test_dry_run_writes_nothing(world: World) -> None:
    run.apply(world.context(dry_run=True), BUILD)
    stored = [path for method, path in world.kube.writes if method != "PATCH"]
    assert stored == []
    assert world.kube.names("RayService") == []
    assert world.aws.names("UpdateCluster", "CreateAddon", "PutRolePolicy") == []
    assert "not checked" in world.text


def test_destroy_leaves_nothing_of_ours_and_everything_of_others(world: World) -> None:
    world.aws.addons["metrics-server"] = {"addonName": "metrics-server", "addonVersion": "v0", "status": "ACTIVE"}
    others = dict(world.kube.objects)
    run.apply(world.context(), BUILD)
    run.destroy(world.context(), ALL)
    assert world.kube.objects.keys() == others.keys()
    assert list(world.aws.addons) == ["metrics-server"]
    assert world.aws.tiered["Mode"] == "Disable"


@pytest.mark.parametrize("before", [{"Mode": "Disable"}, {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 35}])
def test_tiered_storage_goes_back_to_what_it_was(world: World, before: dict[str, object]) -> None:
    world.aws.tiered = before
    stage = run.chosen(["tiered-storage"])
    run.apply(world.context(), stage)
    run.apply(world.context(), stage)
    assert world.aws.tiered["InstanceMemoryAllocationPercentage"] == 20
    run.destroy(world.context(), stage)
    assert world.aws.tiered == before
    assert world.aws.tags == {}
    updates = [params for name, params in world.aws.calls if name == "UpdateCluster"]
    assert [each["NodeRecovery"] for each in updates] == ["None", "None"]


def test_tiered_storage_that_was_right_already_is_left_on(world: World) -> None:
    world.aws.tiered = {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 20}
    stage = run.chosen(["tiered-storage"])
    run.apply(world.context(), stage)
    run.destroy(world.context(), stage)
    assert world.aws.names("UpdateCluster", "AddTags") == []
    assert "left as it is (Enabled, 20 % of memory)" in world.text


def test_destroy_can_be_repeated_and_works_on_nothing(world: World) -> None:
    run.destroy(world.context(), ALL)
    run.apply(world.context(), BUILD)
    run.destroy(world.context(), ALL)
    run.destroy(world.context(), ALL)


def test_destroy_dry_run_names_what_it_would_delete(world: World) -> None:
    run.apply(world.context(), BUILD)
    before = set(world.kube.objects)
    run.destroy(world.context(dry_run=True), ALL)
    assert set(world.kube.objects) == before
    assert "would delete RayService tierserve/tierserve" in world.text


def test_destroy_waits_for_the_disks(world: World) -> None:
    run.apply(world.context(), BUILD)
    volumes = {o["spec"]["csi"]["volumeHandle"] for o in world.kube.of("PersistentVolume")}
    world.aws.volumes = volumes
    with pytest.raises(ClusterError, match="EBS volumes: not ready after"):
        run.destroy(world.context(), run.chosen(["serving"]))
    world.aws.volumes = set()
    run.destroy(world.context(), run.chosen(["serving"]))


def test_ray_is_deleted_before_redis_and_the_claim_before_its_driver(world: World) -> None:
    run.apply(world.context(), BUILD)
    world.kube.calls.clear()
    run.destroy(world.context(), ALL)
    deleted = [
        path.split("/")[-1] + ":" + path.split("/")[-2] for method, path in world.kube.calls if method == "DELETE"
    ]
    assert deleted.index("tierserve:rayservices") < deleted.index("tierserve-redis:statefulsets")
    assert deleted.index("tierserve-l2:persistentvolumeclaims") < deleted.index("curvine-csi-controller:deployments")


def test_secrets_are_made_once_and_never_changed(world: World) -> None:
    run.apply(world.context(), BUILD)
    secrets = {o["metadata"]["name"]: o["data"] for o in world.kube.of("Secret")}
    assert secrets.keys() == {"tierserve-ray-token", "tierserve-redis", "tierserve-api-keys"}
    run.apply(world.context(), BUILD)
    assert {o["metadata"]["name"]: o["data"] for o in world.kube.of("Secret")} == secrets
    assert not any(value in world.text for data in secrets.values() for value in data.values())


def test_given_secrets_come_from_the_environment(world: World) -> None:
    context = world.context()
    context.environment = {"HF_TOKEN": "hf-token", "TIERSERVE_API_KEY": "my-own-key"}
    run.apply(context, BUILD)
    data = {o["metadata"]["name"]: o["data"] for o in world.kube.of("Secret")}
    assert data["tierserve-hugging-face"] == {"HF_TOKEN": "aGYtdG9rZW4="}
    assert data["tierserve-api-keys"] == {"TIERSERVE_API_KEY": "bXktb3duLWtleQ=="}


def test_what_is_no_longer_rendered_is_pruned(world: World) -> None:
    run.apply(world.context(), BUILD)
    growing = world.config.workers.model_copy(update={"max_count": 3})
    world.config = world.config.model_copy(update={"workers": growing})
    run.apply(world.context(), BUILD)
    assert "tierserve-autoscaler" in world.kube.names("Role")
    world.config = world.config.model_copy(update={"workers": growing.model_copy(update={"max_count": None})})
    run.apply(world.context(), BUILD)
    assert "tierserve-autoscaler" not in world.kube.names("Role")


def test_definitions_stay_while_others_use_them(world: World) -> None:
    run.apply(world.context(), BUILD)
    other = {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "theirs", "namespace": "default"}}
    world.kube.add(other | {"spec": {}})
    run.destroy(world.context(), ALL)
    assert world.kube.names("CustomResourceDefinition") == ["rayservices.ray.io"]
    assert "others use it: default/theirs" in world.text


def test_format_happens_once_and_ends_as_false(world: World) -> None:
    run.apply(world.context(), run.chosen(["tiered-storage", "operators"]))
    run.apply(world.context(format_curvine=True), run.chosen(["curvine"]))
    flags = [values["cluster"]["formatMaster"] for values in world.helm.values if "cluster" in values]
    assert flags == [True, False]
    assert world.kube.objects["/api/v1/namespaces/curvine/configmaps/curvine-config"]["data"]["format"] == "False"
    with pytest.raises(ClusterError, match="would wipe data"):
        run.apply(world.context(format_curvine=True), run.chosen(["curvine"]))


def test_shared_check_proves_two_nodes(world: World) -> None:
    run.apply(world.context(), BUILD)
    run.verify(world.context(), run.chosen(["tiered-storage", "curvine"]))
    assert "written on node-a, read and equal on node-b" in world.text
    world.kube.logs["tierserve-shared-read-x"] = "different"
    with pytest.raises(ClusterError, match="the volume is not shared"):
        run.verify(world.context(), run.chosen(["curvine"]))


def test_unknown_stage() -> None:
    with pytest.raises(ClusterError, match="there are: tiered-storage, operators"):
        run.chosen(["everything"])


def test_a_stage_that_another_stands_on_is_not_destroyed_alone(world: World) -> None:
    run.apply(world.context(), BUILD)
    before = set(world.kube.objects)
    with pytest.raises(ClusterError, match="stage serving stands on operators: destroy serving first"):
        run.destroy(world.context(), run.chosen(["operators", "curvine"]))
    assert set(world.kube.objects) == before
