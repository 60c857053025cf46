"""Everything that can go wrong in the middle: a clear message, and a state from which `apply` goes on."""

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError

from app.errors import ClusterError
from cluster.kube.errors import FieldConflictError, ForbiddenError
from cluster.kube.transport import Answer, ConnectionLostError
from cluster.stages import run
from tests.cluster.conftest import World
from tests.cluster.fake_aws import error
from tests.cluster.fake_cluster import refusal

BUILD = run.chosen(["tiered-storage", "operators", "curvine", "serving"])
LOST = ConnectionLostError("reset by peer")


def goes_on(world: World) -> None:
    run.apply(world.context(), BUILD)
    assert run.status(world.context(), BUILD)


def test_forbidden_names_the_right_and_apply_goes_on(world: World) -> None:
    world.kube.script(
        "PATCH", "storageclasses", refusal(403, "storageclasses.storage.k8s.io is forbidden", "Forbidden")
    )
    with pytest.raises(ForbiddenError, match=r"cannot apply StorageClass .*access entry"):
        run.apply(world.context(), BUILD)
    assert "RayService" not in [o["kind"] for o in world.kube.objects.values()]
    goes_on(world)


def test_a_half_applied_stage_can_be_undone_completely(world: World) -> None:
    others = set(world.kube.objects)
    world.kube.script("PATCH", "statefulsets/curvine-worker", refusal(403, "no", "Forbidden"))
    with pytest.raises(ForbiddenError):
        run.apply(world.context(), BUILD)
    assert "curvine-master" in world.kube.names("StatefulSet")
    run.destroy(world.context(), run.chosen([]))
    assert set(world.kube.objects) == others


def test_unauthorized(world: World) -> None:
    world.kube.script("GET", "/version", Answer(401, '{"message": "Unauthorized"}'))
    with pytest.raises(ForbiddenError, match="does not accept these credentials"):
        run.apply(world.context(), BUILD)
    assert world.kube.writes == []


def test_conflict_with_another_manager_names_it_and_changes_nothing(world: World) -> None:
    run.apply(world.context(), BUILD)
    path = "/apis/ray.io/v1/namespaces/tierserve/rayservices/tierserve"
    world.kube.objects[path]["spec"]["serveConfigV2"] = "theirs"
    world.kube.owners[path, "serveConfigV2"] = "kubectl-edit"
    with pytest.raises(FieldConflictError, match=r"kubectl-edit.*--force-conflicts"):
        run.apply(world.context(), BUILD)
    assert world.kube.objects[path]["spec"]["serveConfigV2"] == "theirs"
    run.apply(world.context(force_conflicts=True), BUILD)
    assert world.kube.objects[path]["spec"]["serveConfigV2"] != "theirs"


def test_passing_errors_are_waited_out(world: World) -> None:
    world.kube.script(
        "PATCH", "namespaces/tierserve", refusal(503, "etcd leader changed"), refusal(429, "slow down"), LOST
    )
    goes_on(world)
    assert world.clock.time >= 1 + 2 + 4


def test_lasting_trouble_ends_with_a_message(world: World) -> None:
    world.kube.script("PATCH", "deployments/kuberay", *[refusal(500, "failed calling webhook")] * 6)
    with pytest.raises(ClusterError, match=r"still HTTP 500 after several attempts .failed calling webhook"):
        run.apply(world.context(), BUILD)
    goes_on(world)


def test_lost_for_good_says_that_work_is_kept(world: World) -> None:
    world.kube.script("PATCH", "deployments/kuberay", *[LOST] * 6)
    with pytest.raises(ClusterError, match=r"connection to the cluster is lost.*apply again"):
        run.apply(world.context(), BUILD)
    goes_on(world)


def test_a_connection_lost_in_mid_wait_is_waited_out(world: World) -> None:
    """More losses in a row than one call retries."""
    world.kube.stuck.add("tierserve")
    context = world.context(timeout_s=900)
    world.kube.script("GET", "rayservices/tierserve", Answer(404, "{}"), *[LOST] * 9)
    with pytest.raises(ClusterError, match="not ready after"):
        run.apply(context, BUILD)
    assert "no connection, trying again" in world.text
    world.kube.stuck.clear()
    world.kube._control(world.kube.objects["/apis/ray.io/v1/namespaces/tierserve/rayservices/tierserve"])
    goes_on(world)


def test_time_out_says_what_was_seen_last(world: World) -> None:
    world.kube.stuck.add("curvine-worker")
    with pytest.raises(ClusterError, match=r"curvine/curvine-worker: not ready after .*0 of 2 ready.*apply again"):
        run.apply(world.context(timeout_s=60), BUILD)
    world.kube.stuck.clear()
    world.kube._control(world.kube.objects["/apis/apps/v1/namespaces/curvine/statefulsets/curvine-worker"])
    goes_on(world)


def test_quota_of_the_namespace(world: World) -> None:
    refused = refusal(403, "pods is forbidden: exceeded quota: compute, requested: nvidia.com/gpu=1", "Forbidden")
    world.kube.script("PATCH", "rayservices", refused)
    with pytest.raises(ClusterError, match=r"exceeded quota.*ResourceQuota"):
        run.apply(world.context(), BUILD)
    goes_on(world)


def test_a_missing_stage_is_named(world: World) -> None:
    run.apply(world.context(), run.chosen(["tiered-storage", "operators"]))
    with pytest.raises(ClusterError, match="apply the stage curvine first"):
        run.apply(world.context(), run.chosen(["serving"]))
    with pytest.raises(ClusterError, match="apply the stage serving first"):
        run.apply(world.context(), run.chosen(["verify"]))


def test_an_invalid_object_is_explained(world: World) -> None:
    world.kube.script("PATCH", "storageclasses/tierserve-l2", refusal(422, "parameters: field is immutable", "Invalid"))
    with pytest.raises(ClusterError, match="immutable; destroy the stage and apply it again"):
        run.apply(world.context(), BUILD)


@pytest.mark.parametrize(
    "message",
    [
        "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'template' are forbidden",
        "parameters: Forbidden: updates to parameters are forbidden.",
        "roleRef: Invalid value: cannot change roleRef",
    ],
)
def test_what_cannot_be_changed_says_how_it_can(world: World, message: str) -> None:
    world.kube.script("PATCH", "statefulsets/tierserve-redis", refusal(422, message, "Invalid"))
    with pytest.raises(ClusterError, match="destroy the stage and apply it again to change this"):
        run.apply(world.context(), BUILD)


def test_a_dry_run_says_that_a_job_will_be_made_anew(world: World) -> None:
    run.apply(world.context(), BUILD)
    world.kube.script("PATCH", "jobs/tierserve-prepare-pool", refusal(422, "field is immutable", "Invalid"))
    run.apply(world.context(dry_run=True), BUILD)
    assert "would be made anew: Job tierserve/tierserve-prepare-pool" in world.text


def test_a_job_that_changed_is_made_anew(world: World) -> None:
    run.apply(world.context(), BUILD)
    world.kube.script(
        "PATCH", "jobs/tierserve-prepare-pool", refusal(422, "spec.template: field is immutable", "Invalid")
    )
    goes_on(world)


def test_a_failed_check_shows_the_end_of_its_log(world: World) -> None:
    run.apply(world.context(), BUILD)
    world.kube.logs["tierserve-shared-write-x"] = "dd: Transport endpoint is not connected"
    world.kube.failing.add("tierserve-shared-write")
    with pytest.raises(ClusterError, match=r"BackoffLimitExceeded(?s:.*)Transport endpoint is not connected"):
        run.verify(world.context(), run.chosen(["curvine"]))


class TestAws:
    def test_no_credentials(self, world: World) -> None:
        world.aws.fail("GetCallerIdentity", NoCredentialsError())
        with pytest.raises(ClusterError, match=r"no usable AWS credentials.*aws configure"):
            run.apply(world.context(), BUILD)
        assert world.kube.calls == []

    def test_expired_credentials(self, world: World) -> None:
        world.aws.fail("GetCallerIdentity", error("ExpiredToken", "GetCallerIdentity"))
        with pytest.raises(ClusterError, match=r"does not accept these credentials .ExpiredToken"):
            run.apply(world.context(), BUILD)

    def test_wrong_region_names_the_clusters_that_are_there(self, world: World) -> None:
        aws = world.config.aws
        assert aws is not None
        other = aws.model_copy(update={"hyperpod_cluster": "elsewhere"})
        world.config = world.config.model_copy(update={"aws": other})
        with pytest.raises(ClusterError, match="no HyperPod cluster elsewhere in us-east-1; there are: tierserve"):
            run.apply(world.context(), BUILD)
        assert world.kube.writes == []

    def test_too_few_nodes_names_the_quota(self, world: World) -> None:
        world.aws.nodes = {"ml.g6e.4xlarge": 1, "ml.m5.2xlarge": 3}
        with pytest.raises(ClusterError, match=r"2 nodes of ml\.g6e\.4xlarge are needed.*has 1.*Service Quotas"):
            run.apply(world.context(), BUILD)

    def test_other_eks_cluster(self, world: World) -> None:
        aws = world.config.aws
        assert aws is not None
        world.config = world.config.model_copy(update={"aws": aws.model_copy(update={"eks_cluster": "mine"})})
        with pytest.raises(ClusterError, match=r"set aws.eks_cluster"):
            run.apply(world.context(), BUILD)

    def test_denied_names_the_action(self, world: World) -> None:
        world.aws.fail("UpdateCluster", error("AccessDeniedException", "UpdateCluster"))
        with pytest.raises(ClusterError, match="your credentials lack sagemaker:UpdateCluster"):
            run.apply(world.context(), BUILD)
        goes_on(world)

    def test_a_busy_cluster_is_waited_for(self, world: World) -> None:
        world.aws.updating = 3
        goes_on(world)
        assert "HyperPod cluster tierserve: Updating" in world.text

    def test_quota_of_the_account(self, world: World) -> None:
        world.aws.fail("CreateAddon", error("ResourceLimitExceeded", "CreateAddon", "too many add-ons"))
        with pytest.raises(ClusterError, match=r"a quota is reached .too many add-ons"):
            run.apply(world.context(), BUILD)
        goes_on(world)

    def test_a_lost_connection_in_mid_wait_is_waited_out(self, world: World) -> None:
        lost = EndpointConnectionError(endpoint_url="https://eks.us-east-1.amazonaws.com")
        no = error("ResourceNotFoundException", "DescribeAddon")
        world.aws.fail("DescribeAddon", no, lost, lost)
        goes_on(world)
        assert "no answer from AWS" in world.text

    def test_an_addon_that_fails_says_why(self, world: World) -> None:
        issue = {"issues": [{"code": "AccessDenied", "message": "role cannot be assumed"}]}
        broken = {"addonName": "cert-manager", "addonVersion": "v1", "status": "CREATE_FAILED", "health": issue}
        world.aws.addons["cert-manager"] = broken
        with pytest.raises(ClusterError, match="cert-manager: CREATE_FAILED: role cannot be assumed"):
            run.apply(world.context(), BUILD)
        del world.aws.addons["cert-manager"]
        goes_on(world)


class TestRefusedBeforeAnythingIsTouched:
    def test_the_example_image(self, world: World) -> None:
        world.config = world.config.model_copy(update={"image": "111122223333.dkr.ecr.us-east-1.amazonaws.com/x:1"})
        with pytest.raises(ClusterError, match="is the example: build cluster/images"):
            run.apply(world.context(), BUILD)
        assert world.kube.calls == [] == world.aws.calls

    def test_another_kubernetes(self, world: World) -> None:
        world.kube.version = "1.34"
        with pytest.raises(ClusterError, match=r"runs Kubernetes 1\.34, the configuration says 1\.33"):
            run.apply(world.context(), BUILD)
        assert world.kube.writes == []
