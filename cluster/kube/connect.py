"""Ways to an API server: a context of the kubeconfig, or straight from EKS with AWS credentials."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import urllib3
from botocore.exceptions import ClientError

from app.errors import ClusterError
from cluster.aws.session import explained
from cluster.clock import Clock
from cluster.kube.transport import HttpTransport

# EKS accepts a token for 15 minutes after it was signed.
_TOKEN_S = 600.0
_EXPIRES_S = 60


def from_kubeconfig(context: str) -> HttpTransport:
    """Raises ClusterError when there is no such context or its credentials cannot be read."""
    from kubernetes import config
    from kubernetes.config.config_exception import ConfigException

    try:
        client = config.new_client_from_config(context=context)
    except ConfigException as error:
        raise ClusterError(f"kubeconfig context {context}: {error}; `kubectl config get-contexts` lists them") from None
    settings = client.configuration

    def headers() -> Mapping[str, str]:
        auth = settings.auth_settings().values()  # asks the refresh hook of exec and cloud plugins
        return {entry["key"]: entry["value"] for entry in auth if entry["in"] == "header" and entry["value"]}

    return HttpTransport(settings.host, client.rest_client.pool_manager, headers)


def from_eks(eks: Any, sign: Callable[[str], str], name: str, clock: Clock) -> HttpTransport:
    """`eks` is a boto3 client, `sign` makes a token for the named cluster (see `eks_signer`)."""
    described = _describe(eks, name)
    if described["status"] not in ("ACTIVE", "UPDATING"):
        raise ClusterError(f"EKS cluster {name} is {described['status']}: wait until it is ACTIVE")
    authority = base64.b64decode(described["certificateAuthority"]["data"]).decode(errors="replace")
    pool = urllib3.PoolManager(cert_reqs="CERT_REQUIRED", ca_cert_data=authority)
    signed: tuple[float, str] = (float("-inf"), "")

    def headers() -> Mapping[str, str]:
        nonlocal signed
        if clock.now() - signed[0] > _TOKEN_S:
            with explained("sign a token for the EKS cluster", "sts:GetCallerIdentity"):
                signed = (clock.now(), sign(name))
        return {"Authorization": f"Bearer {signed[1]}"}

    return HttpTransport(described["endpoint"], pool, headers)


def _describe(eks: Any, name: str) -> dict[str, Any]:
    with explained(f"describe EKS cluster {name}", "eks:DescribeCluster"):
        try:
            return dict(eks.describe_cluster(name=name)["cluster"])
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceNotFoundException":
                raise
    where = eks.meta.region_name
    raise ClusterError(f"there is no EKS cluster {name} in {where}: set aws.eks_cluster and aws.region")


def eks_signer(session: Any, region: str) -> Callable[[str], str]:
    """A token is a presigned STS GetCallerIdentity that names the cluster: what `aws eks get-token` prints."""

    def sign(cluster: str) -> str:
        from botocore.signers import RequestSigner

        sts = session.client("sts", region_name=region)
        signer = RequestSigner(
            sts.meta.service_model.service_id, region, "sts", "v4", session.get_credentials(), session.events
        )
        request = {
            "method": "GET",
            "url": f"{sts.meta.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
            "body": {},
            "headers": {"x-k8s-aws-id": cluster},
            "context": {},
        }
        url = signer.generate_presigned_url(request, region_name=region, expires_in=_EXPIRES_S, operation_name="")
        return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")

    return sign
