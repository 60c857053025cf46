"""The HyperPod cluster: what it is, whether it fits, and its tiered storage."""

from dataclasses import dataclass
from typing import Any, Literal

from botocore.exceptions import ClientError

from app.errors import ClusterError
from cluster.aws.session import Aws, AwsLostError, explained
from cluster.kube.readiness import Readiness
from cluster.kube.waiting import Waiter

Mode = Literal["Enable", "Disable"]
# A tag of the HyperPod cluster: how its tiered storage was before this project changed it (`Disable`, `Enable 30`).
BEFORE = "tierserve:tiered-storage-before"
TIMEOUT_S = 3600


@dataclass(frozen=True)
class HyperPod:
    """What DescribeCluster says, as far as it matters here."""

    arn: str
    status: str
    node_recovery: str
    eks_arn: str
    tiered_mode: Mode
    tiered_percent: int | None
    nodes: dict[str, int]
    failure: str = ""

    @classmethod
    def parse(cls, answer: dict[str, Any]) -> "HyperPod":
        tiered = answer.get("TieredStorageConfig") or {}
        nodes: dict[str, int] = {}
        for group in answer.get("InstanceGroups") or []:
            kind = group.get("InstanceType", "")
            nodes[kind] = nodes.get(kind, 0) + int(group.get("CurrentCount") or 0)
        return cls(
            arn=answer.get("ClusterArn", ""),
            status=answer["ClusterStatus"],
            # Left out means the service's default, which is Automatic.
            node_recovery=answer.get("NodeRecovery") or "Automatic",
            eks_arn=((answer.get("Orchestrator") or {}).get("Eks") or {}).get("ClusterArn", ""),
            tiered_mode=tiered.get("Mode", "Disable"),
            tiered_percent=tiered.get("InstanceMemoryAllocationPercentage"),
            nodes=nodes,
            failure=answer.get("FailureMessage") or "",
        )

    def tiered(self) -> str:
        return f"{self.tiered_mode}d" + (f", {self.tiered_percent} % of memory" if self.tiered_mode == "Enable" else "")


def describe(aws: Aws) -> HyperPod:
    """Raises ClusterError; for a name that is not there, with the names that are."""
    name = aws.section.hyperpod_cluster
    with explained(f"describe HyperPod cluster {name}", "sagemaker:DescribeCluster"):
        try:
            return HyperPod.parse(aws.client("sagemaker").describe_cluster(ClusterName=name))
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("ResourceNotFound", "ValidationException"):
                raise
    raise ClusterError(f"there is no HyperPod cluster {name} in {aws.section.region}; {_others(aws)}")


def _others(aws: Aws) -> str:
    with explained("list HyperPod clusters", "sagemaker:ListClusters"):
        listed = aws.client("sagemaker").list_clusters()["ClusterSummaries"]
    names = ", ".join(summary["ClusterName"] for summary in listed)
    return f"there are: {names}" if names else "there is none at all: wrong region or account?"


def check_nodes(cluster: HyperPod, wanted: dict[str, int]) -> None:
    """Raises ClusterError when the instance groups have fewer nodes of a type than are needed."""
    for kind, count in wanted.items():
        have = cluster.nodes.get(kind, 0)
        if have < count:
            there = ", ".join(f"{n} x {k}" for k, n in cluster.nodes.items() if n) or "none"
            raise ClusterError(
                f"{count} nodes of {kind} are needed, the HyperPod cluster has {have} (nodes: {there}). Grow an "
                f"instance group; its quota is `{kind} for cluster usage` of SageMaker in Service Quotas"
            )


def set_tiered(aws: Aws, cluster: HyperPod, mode: Mode, percent: int | None) -> None:
    """UpdateCluster with the node recovery passed along unchanged: alone, the tiered storage is refused."""
    config: dict[str, Any] = {"Mode": mode}
    if mode == "Enable":
        config["InstanceMemoryAllocationPercentage"] = percent
    with explained(f"{mode.lower()} tiered storage", "sagemaker:UpdateCluster"):
        aws.client("sagemaker").update_cluster(
            ClusterName=aws.section.hyperpod_cluster, NodeRecovery=cluster.node_recovery, TieredStorageConfig=config
        )


def remember(aws: Aws, cluster: HyperPod) -> None:
    """Note how its tiered storage is, for `destroy`; a note that is there already is older and stays."""
    if remembered(aws, cluster) is None:
        value = " ".join(str(each) for each in (cluster.tiered_mode, cluster.tiered_percent) if each is not None)
        with explained(f"tag HyperPod cluster {aws.section.hyperpod_cluster}", "sagemaker:AddTags"):
            aws.client("sagemaker").add_tags(ResourceArn=cluster.arn, Tags=[{"Key": BEFORE, "Value": value}])


def remembered(aws: Aws, cluster: HyperPod) -> tuple[Mode, int | None] | None:
    """How it was before; None when this project has not changed it."""
    with explained(f"read the tags of HyperPod cluster {aws.section.hyperpod_cluster}", "sagemaker:ListTags"):
        tags = {tag["Key"]: tag["Value"] for tag in aws.client("sagemaker").list_tags(ResourceArn=cluster.arn)["Tags"]}
    if BEFORE not in tags:
        return None
    mode, _, percent = tags[BEFORE].partition(" ")
    return ("Enable", int(percent)) if mode == "Enable" and percent.isdigit() else ("Disable", None)


def forget(aws: Aws, cluster: HyperPod) -> None:
    with explained(f"untag HyperPod cluster {aws.section.hyperpod_cluster}", "sagemaker:DeleteTags"):
        aws.client("sagemaker").delete_tags(ResourceArn=cluster.arn, TagKeys=[BEFORE])


def wait_in_service(aws: Aws, waiter: Waiter, timeout_s: float = TIMEOUT_S) -> HyperPod:
    """Until the cluster is InService; returns what it is then. A lost connection is waited out."""
    seen: list[HyperPod] = []

    def look() -> Readiness:
        try:
            cluster = describe(aws)
        except AwsLostError as error:
            return Readiness("waiting", str(error))
        seen.append(cluster)
        if cluster.status in ("Failed", "Deleting"):
            return Readiness("failed", f"{cluster.status} {cluster.failure}".strip())
        return Readiness("ready" if cluster.status == "InService" else "waiting", cluster.status)

    waiter.until(f"HyperPod cluster {aws.section.hyperpod_cluster}", look, timeout_s)
    return seen[-1]
