"""AWS in memory, behind real boto3 clients: botocore validates every request and every answer (as Stubber does), and
the answers follow a small state instead of a fixed order."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import boto3
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from botocore.validate import validate_parameters

ARN = "arn:aws:eks:us-east-1:123456789012:cluster/tierserve"


@dataclass
class FakeAws:
    """Has what boto3.Session has that is used: `client(name)`."""

    tiered: dict[str, Any] = field(default_factory=lambda: {"Mode": "Disable"})
    recovery: str | None = "None"
    nodes: dict[str, int] = field(default_factory=lambda: {"ml.g6e.4xlarge": 2})
    updating: int = 0  # DescribeCluster answers that say Updating after an update
    addons: dict[str, dict[str, Any]] = field(default_factory=dict)
    policies: dict[str, Any] = field(default_factory=dict)
    volumes: set[str] = field(default_factory=set)
    tags: dict[str, str] = field(default_factory=dict)  # of the HyperPod cluster
    errors: dict[str, list[Exception]] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    _busy: int = 0

    def client(self, name: str, region_name: str | None = None, config: Any = None) -> Any:
        client, current = _client(name)
        current.append(self)
        return client

    def fail(self, operation: str, *errors: Exception) -> None:
        self.errors.setdefault(operation, []).extend(errors)

    def answer(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((operation, params))
        if self.errors.get(operation):
            raise self.errors[operation].pop(0)
        handler = getattr(self, f"on_{operation.lower()}")
        result = handler(**{key.lower(): value for key, value in params.items()})
        assert isinstance(result, dict), operation
        return result

    def names(self, *operations: str) -> list[str]:
        return [name for name, _ in self.calls if name in operations]

    def on_getcalleridentity(self) -> dict[str, Any]:
        return {"Arn": "arn:aws:iam::123456789012:user/me", "Account": "123456789012", "UserId": "me"}

    def on_describecluster(self, clustername: str) -> dict[str, Any]:
        if clustername != "tierserve":
            raise error("ResourceNotFound", "DescribeCluster", "Cluster not found")
        status = "InService"
        if self._busy:
            self._busy, status = self._busy - 1, "Updating"
        groups = [{"InstanceType": kind, "CurrentCount": count} for kind, count in self.nodes.items()]
        body = {
            "ClusterArn": "arn:aws:sagemaker:us-east-1:123456789012:cluster/abcdefghijkl",
            "ClusterName": clustername,
            "ClusterStatus": status,
            "InstanceGroups": groups,
            "Orchestrator": {"Eks": {"ClusterArn": ARN}},
            "TieredStorageConfig": self.tiered,
        }
        return body | ({"NodeRecovery": self.recovery} if self.recovery else {})

    def on_listclusters(self) -> dict[str, Any]:
        arn = "arn:aws:sagemaker:us-east-1:123456789012:cluster/abcdefghijkl"
        summary = {"ClusterArn": arn, "ClusterName": "tierserve", "CreationTime": 0, "ClusterStatus": "InService"}
        return {"ClusterSummaries": [summary]}

    def on_updatecluster(self, clustername: str, **changes: Any) -> dict[str, Any]:
        if "noderecovery" not in changes:
            raise error("ValidationException", "UpdateCluster", "at least one of InstanceGroups, NodeRecovery")
        self.tiered, self._busy = changes["tieredstorageconfig"], self.updating
        return {"ClusterArn": "arn:aws:sagemaker:us-east-1:123456789012:cluster/abcdefghijkl"}

    def on_listtags(self, resourcearn: str) -> dict[str, Any]:
        return {"Tags": [{"Key": key, "Value": value} for key, value in self.tags.items()]}

    def on_addtags(self, resourcearn: str, tags: list[dict[str, str]]) -> dict[str, Any]:
        self.tags |= {tag["Key"]: tag["Value"] for tag in tags}
        return {"Tags": tags}

    def on_deletetags(self, resourcearn: str, tagkeys: list[str]) -> dict[str, Any]:
        self.tags = {key: value for key, value in self.tags.items() if key not in tagkeys}
        return {}

    def on_describeaddon(self, clustername: str, addonname: str) -> dict[str, Any]:
        if addonname not in self.addons:
            raise error("ResourceNotFoundException", "DescribeAddon", "No addon")
        return {"addon": self.addons[addonname]}

    def on_describeaddonversions(self, addonname: str, kubernetesversion: str) -> dict[str, Any]:
        compatible = [{"clusterVersion": kubernetesversion, "defaultVersion": False}]
        default = [{"clusterVersion": kubernetesversion, "defaultVersion": True}]
        versions = [
            {"addonVersion": "v2", "compatibilities": compatible},
            {"addonVersion": "v1", "compatibilities": default},
        ]
        return {"addons": [{"addonName": addonname, "addonVersions": versions}]}

    def on_createaddon(self, clustername: str, addonname: str, addonversion: str, **more: Any) -> dict[str, Any]:
        tags = more.get("tags", {})
        self.addons[addonname] = {
            "addonName": addonname,
            "addonVersion": addonversion,
            "status": "ACTIVE",
            "tags": tags,
        }
        return {"addon": self.addons[addonname]}

    def on_deleteaddon(self, clustername: str, addonname: str) -> dict[str, Any]:
        return {"addon": self.addons.pop(addonname)}

    def on_describevolumes(self, volumeids: list[str]) -> dict[str, Any]:
        if volumeids[0] not in self.volumes:
            raise error("InvalidVolume.NotFound", "DescribeVolumes", "does not exist")
        return {"Volumes": [{"VolumeId": volumeids[0]}]}


@cache
def _client(name: str) -> tuple[Any, list[FakeAws]]:
    """A client takes a while to make: one per service for all tests; the last world in the list answers."""
    client = boto3.client(name, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")
    seen: dict[str, Any] = {}
    current: list[FakeAws] = []

    def keep(params: dict[str, Any], model: Any, **_: Any) -> None:
        seen[model.name] = params

    def answer(model: Any, **_: Any) -> tuple[Any, dict[str, Any]]:
        parsed = current[-1].answer(model.name, seen[model.name])
        if model.output_shape is not None:
            validate_parameters(parsed, model.output_shape)
        return AWSResponse("https://aws", 200, {}, None), parsed

    client.meta.events.register_first("before-parameter-build.*.*", keep)
    client.meta.events.register_first("before-call.*.*", answer)
    return client, current


def error(code: str, operation: str, message: str = "no") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)
