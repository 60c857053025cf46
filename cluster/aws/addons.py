"""EKS add-ons: installed when missing, at the pinned or AWS's default version; removed only if we made them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from app.errors import ClusterError
from cluster.aws.session import Aws, AwsLostError, explained
from cluster.kube.readiness import Readiness
from cluster.kube.waiting import Waiter

OURS = {"created-by": "tierserve"}
TIMEOUT_S = 1200
_FAILED = {"CREATE_FAILED", "DELETE_FAILED", "UPDATE_FAILED"}


@dataclass(frozen=True)
class Addon:
    name: str
    version: str
    status: str
    ours: bool
    issues: str


def describe(aws: Aws, name: str) -> Addon | None:
    """None when it is not installed."""
    with explained(f"describe add-on {name}", "eks:DescribeAddon"):
        try:
            found = aws.client("eks").describe_addon(clusterName=aws.section.eks_cluster, addonName=name)["addon"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "ResourceNotFoundException":
                return None
            raise
    issues = "; ".join(issue.get("message", "") for issue in (found.get("health") or {}).get("issues") or [])
    ours = (found.get("tags") or {}).items() >= OURS.items()
    return Addon(name, found.get("addonVersion", ""), found["status"], ours, issues)


def resolve(aws: Aws, name: str, pin: str, kubernetes: str) -> str:
    """The version that a pin stands for: `default` is AWS's own for this Kubernetes. Raises ClusterError for none."""
    if pin != "default":
        return pin
    with explained(f"list versions of add-on {name}", "eks:DescribeAddonVersions"):
        listed = aws.client("eks").describe_addon_versions(addonName=name, kubernetesVersion=kubernetes)["addons"]
    versions = [version for addon in listed for version in addon.get("addonVersions", [])]
    for version in versions:
        if any(entry.get("defaultVersion") for entry in version.get("compatibilities", [])):
            return str(version["addonVersion"])
    if versions:
        return str(versions[0]["addonVersion"])
    raise ClusterError(f"EKS has no add-on {name} for Kubernetes {kubernetes} in {aws.section.region}")


def install(aws: Aws, name: str, version: str, settings: Mapping[str, Any], waiter: Waiter) -> str:
    """Install if missing, wait until active. Says what happened: created, unchanged, or kept at another version."""
    found = describe(aws, name)
    if found is not None and (found.status == "DELETING" or (found.ours and found.status == "CREATE_FAILED")):
        _clear(aws, found, waiter)
        found = None
    if found is None:
        _create(aws, name, version, settings)
    wait_active(aws, name, waiter)
    if found is None:
        return "created"
    return "unchanged" if found.version == version else f"kept at {found.version} (pinned or default: {version})"


def _clear(aws: Aws, found: Addon, waiter: Waiter) -> None:
    """Away with an attempt of ours that failed (EKS never tries again), or with one that is being deleted."""

    def look() -> Readiness:
        left = describe(aws, found.name)
        return Readiness("ready", "gone") if left is None else Readiness("waiting", f"{left.status}, to be made anew")

    if found.status != "DELETING":
        remove(aws, found.name)
    waiter.until(f"add-on {found.name}", look, TIMEOUT_S)


def _create(aws: Aws, name: str, version: str, settings: Mapping[str, Any]) -> None:
    request: dict[str, Any] = {
        "clusterName": aws.section.eks_cluster,
        "addonName": name,
        "addonVersion": version,
        "resolveConflicts": "NONE",
        "tags": OURS,
    }
    if name in aws.section.addon_roles:
        request["serviceAccountRoleArn"] = aws.section.addon_roles[name]
    if settings:
        request["configurationValues"] = json.dumps(dict(settings))
    with explained(f"create add-on {name}", "eks:CreateAddon"):
        try:
            aws.client("eks").create_addon(**request)
        except ClientError as error:
            # Made by the attempt whose answer was lost, or by somebody else just now: the wait will see.
            if error.response["Error"]["Code"] != "ResourceInUseException":
                raise


def wait_active(aws: Aws, name: str, waiter: Waiter, timeout_s: float = TIMEOUT_S) -> None:
    def look() -> Readiness:
        try:
            found = describe(aws, name)
        except AwsLostError as error:
            return Readiness("waiting", str(error))
        if found is None:
            return Readiness("waiting", "not there yet")
        if found.status in _FAILED:
            reason = f"{found.status}: {found.issues or 'no reason given'}"
            return Readiness("failed", f"{reason}; remove the cause, or leave it out (aws.addons), and apply again")
        text = found.status + (f": {found.issues}" if found.issues else "")
        return Readiness("ready" if found.status == "ACTIVE" else "waiting", text)

    waiter.until(f"add-on {name}", look, timeout_s)


def remove(aws: Aws, name: str) -> str:
    """Remove it if this project made it."""
    found = describe(aws, name)
    if found is None:
        return "not there"
    if not found.ours:
        return "left: it was there before"
    with explained(f"delete add-on {name}", "eks:DeleteAddon"):
        aws.client("eks").delete_addon(clusterName=aws.section.eks_cluster, addonName=name)
    return "deleted"
