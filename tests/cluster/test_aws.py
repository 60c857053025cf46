"""The AWS calls: botocore validates requests and answers (Stubber); moto plays the services it knows."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from app.errors import ClusterError
from cluster.aws import addons, hyperpod, iam, volumes
from cluster.aws.session import Aws
from cluster.config import AwsSection
from cluster.kube.connect import eks_signer, from_eks
from cluster.kube.waiting import Waiter
from tests.cluster.fake_cluster import FakeClock

SECTION = AwsSection(region="us-east-1", hyperpod_cluster="pod", eks_cluster="eks", ebs_csi_role="ebs")
CLUSTER_ARN = "arn:aws:sagemaker:us-east-1:123456789012:cluster/abcdefghijkl"


class OneClient:
    def __init__(self, client: Any) -> None:
        self._client = client

    def client(self, *_: Any, **__: Any) -> Any:
        return self._client


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def stubbed(service: str) -> tuple[Aws, Stubber]:
    client = boto3.client(service, region_name="us-east-1")
    stub = Stubber(client)
    stub.activate()
    return Aws(SECTION, OneClient(client)), stub


def waiter(said: list[str] | None = None) -> Waiter:
    return Waiter(FakeClock(), (said if said is not None else []).append)


def described(**more: Any) -> dict[str, Any]:
    return {"ClusterArn": CLUSTER_ARN, "ClusterStatus": "InService", "InstanceGroups": [], **more}


class TestTieredStorage:
    @pytest.mark.parametrize(
        ("recovery", "passed"), [("Automatic", "Automatic"), ("None", "None"), (None, "Automatic")]
    )
    def test_node_recovery_is_passed_along_unchanged(self, recovery: str | None, passed: str) -> None:
        aws, stub = stubbed("sagemaker")
        stub.add_response("describe_cluster", described(**({"NodeRecovery": recovery} if recovery else {})))
        tiered = {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 20}
        expected = {"ClusterName": "pod", "NodeRecovery": passed, "TieredStorageConfig": tiered}
        stub.add_response("update_cluster", {"ClusterArn": CLUSTER_ARN}, expected)
        hyperpod.set_tiered(aws, hyperpod.describe(aws), "Enable", 20)
        stub.assert_no_pending_responses()

    def test_disabling_sends_no_percentage(self) -> None:
        aws, stub = stubbed("sagemaker")
        expected = {"ClusterName": "pod", "NodeRecovery": "None", "TieredStorageConfig": {"Mode": "Disable"}}
        stub.add_response("update_cluster", {"ClusterArn": CLUSTER_ARN}, expected)
        cluster = hyperpod.HyperPod.parse(described(NodeRecovery="None"))
        hyperpod.set_tiered(aws, cluster, "Disable", None)

    def test_a_request_that_botocore_does_not_know_is_explained(self) -> None:
        aws = Aws(SECTION, OneClient(boto3.client("sagemaker", region_name="us-east-1")))
        cluster = hyperpod.HyperPod.parse(described())
        with pytest.raises(ClusterError, match="botocore refuses the request"):
            hyperpod.set_tiered(aws, cluster, "Enable", "twenty")  # type: ignore[arg-type]

    def test_a_failed_cluster_ends_the_wait_with_its_reason(self) -> None:
        aws, stub = stubbed("sagemaker")
        stub.add_response("describe_cluster", described(ClusterStatus="Updating"))
        stub.add_response("describe_cluster", described(ClusterStatus="Failed", FailureMessage="no capacity"))
        with pytest.raises(ClusterError, match="Failed no capacity"):
            hyperpod.wait_in_service(aws, waiter())

    def test_nodes_of_a_type_are_added_up(self) -> None:
        groups = [{"InstanceType": "ml.g6e.4xlarge", "CurrentCount": n} for n in (1, 2)]
        assert hyperpod.HyperPod.parse(described(InstanceGroups=groups)).nodes == {"ml.g6e.4xlarge": 3}


class TestAddons:
    def test_create_is_what_eks_expects(self) -> None:
        aws, stub = stubbed("eks")
        stub.add_client_error("describe_addon", "ResourceNotFoundException")
        expected = {
            "clusterName": "eks",
            "addonName": "cert-manager",
            "addonVersion": "v1",
            "resolveConflicts": "NONE",
            "tags": {"created-by": "tierserve"},
            "configurationValues": json.dumps({"replicas": 2}),
        }
        stub.add_response("create_addon", {"addon": {"addonName": "cert-manager", "status": "CREATING"}}, expected)
        for status in ("CREATING", "ACTIVE"):
            stub.add_response("describe_addon", {"addon": {"addonName": "cert-manager", "status": status}})
        assert addons.install(aws, "cert-manager", "v1", {"replicas": 2}, waiter()) == "created"
        stub.assert_no_pending_responses()

    def test_one_that_is_there_is_kept_and_its_version_said(self) -> None:
        aws, stub = stubbed("eks")
        there = {"addon": {"addonName": "x", "status": "ACTIVE", "addonVersion": "v0"}}
        stub.add_response("describe_addon", there)
        stub.add_response("describe_addon", there)
        assert addons.install(aws, "x", "v1", {}, waiter()) == "kept at v0 (pinned or default: v1)"

    def test_default_is_the_version_that_aws_marks(self) -> None:
        aws, stub = stubbed("eks")
        versions = [
            {"addonVersion": "v9", "compatibilities": [{"clusterVersion": "1.33", "defaultVersion": False}]},
            {"addonVersion": "v8", "compatibilities": [{"clusterVersion": "1.33", "defaultVersion": True}]},
        ]
        stub.add_response("describe_addon_versions", {"addons": [{"addonName": "x", "addonVersions": versions}]})
        assert addons.resolve(aws, "x", "default", "1.33") == "v8"
        assert addons.resolve(aws, "x", "v7", "1.33") == "v7"

    def test_none_for_this_kubernetes(self) -> None:
        aws, stub = stubbed("eks")
        stub.add_response("describe_addon_versions", {"addons": []})
        with pytest.raises(ClusterError, match=r"no add-on x for Kubernetes 1\.33"):
            addons.resolve(aws, "x", "default", "1.33")

    def test_a_failed_attempt_of_ours_is_made_anew(self) -> None:
        """EKS does not try again by itself, so `apply` must."""
        aws, stub = stubbed("eks")
        failed = {"addonName": "x", "status": "CREATE_FAILED", "tags": {"created-by": "tierserve"}}
        for _ in range(2):
            stub.add_response("describe_addon", {"addon": failed})
        stub.add_response("delete_addon", {"addon": failed})
        stub.add_response("describe_addon", {"addon": {**failed, "status": "DELETING"}})
        stub.add_client_error("describe_addon", "ResourceNotFoundException")
        stub.add_response("create_addon", {"addon": {"addonName": "x", "status": "CREATING"}})
        stub.add_response("describe_addon", {"addon": {"addonName": "x", "status": "ACTIVE"}})
        assert addons.install(aws, "x", "v1", {}, waiter()) == "created"
        stub.assert_no_pending_responses()

    def test_a_failed_one_of_others_is_left_and_explained(self) -> None:
        aws, stub = stubbed("eks")
        issues = {"issues": [{"message": "conflicts with Deployment metrics-server"}]}
        for _ in range(2):
            stub.add_response(
                "describe_addon", {"addon": {"addonName": "x", "status": "CREATE_FAILED", "health": issues}}
            )
        with pytest.raises(
            ClusterError, match=r"conflicts with Deployment metrics-server; remove the cause, or leave it"
        ):
            addons.install(aws, "x", "v1", {}, waiter())

    def test_only_what_we_made_is_removed(self) -> None:
        aws, stub = stubbed("eks")
        stub.add_response("describe_addon", {"addon": {"addonName": "x", "status": "ACTIVE", "tags": {"team": "a"}}})
        assert addons.remove(aws, "x") == "left: it was there before"


@pytest.fixture
def moto_aws() -> Iterator[Aws]:
    with mock_aws():
        yield Aws(SECTION, boto3.Session(region_name="us-east-1"))


class TestMoto:
    def test_iam_policy_is_put_kept_and_removed(self, moto_aws: Aws) -> None:
        client = moto_aws.client("iam")
        client.create_role(RoleName="ebs", AssumeRolePolicyDocument="{}")
        assert iam.put(moto_aws) == "created"
        assert iam.put(moto_aws) == "unchanged"
        statement = iam.current(moto_aws)["Statement"][0]  # type: ignore[index]
        assert "sagemaker:AttachClusterNodeVolume" in statement["Action"]
        assert statement["Resource"] == "arn:aws:sagemaker:us-east-1:123456789012:cluster/*"
        assert (iam.remove(moto_aws), iam.remove(moto_aws)) == ("deleted", "not there")

    def test_iam_role_that_is_not_there(self, moto_aws: Aws) -> None:
        with pytest.raises(ClusterError, match="there is no IAM role ebs"):
            iam.put(moto_aws)

    def test_volumes(self, moto_aws: Aws) -> None:
        ec2 = moto_aws.client("ec2")
        volume = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"]
        assert volumes.still_there(moto_aws, [volume, "vol-0123456789abcdef0"]) == [volume]
        ec2.delete_volume(VolumeId=volume)
        assert volumes.still_there(moto_aws, [volume]) == []

    def test_a_cluster_that_is_not_there(self, moto_aws: Aws) -> None:
        with pytest.raises(ClusterError, match="no HyperPod cluster pod in us-east-1; there is none at all"):
            hyperpod.describe(moto_aws)

    def test_a_cluster_that_is_there(self, moto_aws: Aws) -> None:
        group = {
            "InstanceCount": 2,
            "InstanceGroupName": "gpu",
            "InstanceType": "ml.g5.4xlarge",  # moto knows no newer one
            "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-b/p", "OnCreate": "on_create.sh"},
            "ExecutionRole": "arn:aws:iam::123456789012:role/hyperpod",
            "ThreadsPerCore": 1,
        }
        moto_aws.client("sagemaker").create_cluster(ClusterName="pod", InstanceGroups=[group])
        assert hyperpod.describe(moto_aws).node_recovery == "Automatic"

    def test_eks_connection_has_a_fresh_token(self, moto_aws: Aws) -> None:
        eks = moto_aws.client("eks")
        role, network = "arn:aws:iam::123456789012:role/eks", {"subnetIds": ["subnet-1"]}
        eks.create_cluster(name="eks", roleArn=role, resourcesVpcConfig=network)
        signed: list[str] = []
        clock = FakeClock()
        transport = from_eks(eks, lambda name: signed.append(name) or f"token-{len(signed)}", "eks", clock)  # type: ignore[func-returns-value]
        headers = transport._headers
        assert headers() == headers() == {"Authorization": "Bearer token-1"}
        clock.time += 700
        assert headers() == {"Authorization": "Bearer token-2"}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ResourceNotFoundException", "there is no EKS cluster eks in us-east-1: set aws.eks_cluster"),
        ("AccessDeniedException", "your credentials lack eks:DescribeCluster"),
    ],
)
def test_an_eks_cluster_that_cannot_be_described(code: str, message: str) -> None:
    eks = boto3.client("eks", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    stub = Stubber(eks)
    stub.add_client_error("describe_cluster", code)
    with stub, pytest.raises(ClusterError, match=message):
        from_eks(eks, str, "eks", FakeClock())


def test_no_credentials_for_eks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    eks = boto3.Session().client("eks", region_name="us-east-1")
    with pytest.raises(
        ClusterError, match=r"cannot describe EKS cluster eks: no usable AWS credentials .*aws sso login"
    ):
        from_eks(eks, str, "eks", FakeClock())


def test_eks_token_is_a_presigned_identity_call() -> None:
    import base64

    token = eks_signer(boto3.Session(), "us-east-1")("my-eks")
    assert token.startswith("k8s-aws-v1.")
    raw = token.removeprefix("k8s-aws-v1.")
    url = base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)).decode()
    assert url.startswith("https://sts.us-east-1.amazonaws.com/?Action=GetCallerIdentity")
    assert "x-k8s-aws-id" in url
    assert "X-Amz-Expires=60" in url


def test_unknown_profile() -> None:
    aws = Aws(SECTION.model_copy(update={"profile": "nobody-has-this"}))
    with pytest.raises(ClusterError, match=r"no usable AWS credentials .*nobody-has-this"):
        aws.caller()
