"""The inline policy that lets the EBS CSI driver attach volumes to HyperPod nodes."""

import json
from typing import Any

import yaml
from botocore.exceptions import ClientError

from app.errors import ClusterError
from cluster.aws.session import Aws, explained
from cluster.files import ROOT
from cluster.render.template import fill

POLICY = "tierserve-ebs-csi-hyperpod"


def document(aws: Aws) -> dict[str, Any]:
    """The statements of cluster/iam for this account and region."""
    partition, account = aws.caller().split(":")[1], aws.caller().split(":")[4]
    known = {
        "partition": partition,
        "account": account,
        "region": aws.section.region,
        "eks_cluster": aws.section.eks_cluster,
    }
    filled = fill(yaml.safe_load((ROOT / "iam" / "ebs-csi-hyperpod.yaml").read_text()), known)
    assert isinstance(filled, dict), filled
    return filled


def current(aws: Aws) -> dict[str, Any] | None:
    role = aws.section.ebs_csi_role
    with explained(f"read the policies of role {role}", "iam:GetRolePolicy"):
        try:
            found = aws.client("iam").get_role_policy(RoleName=role, PolicyName=POLICY)["PolicyDocument"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchEntity":
                return None
            raise
    return dict(found)


def put(aws: Aws) -> str:
    """Says created, changed or unchanged."""
    wanted, found = document(aws), current(aws)
    if found == wanted:
        return "unchanged"
    with explained(f"put a policy on role {aws.section.ebs_csi_role}", "iam:PutRolePolicy"):
        try:
            aws.client("iam").put_role_policy(
                RoleName=aws.section.ebs_csi_role, PolicyName=POLICY, PolicyDocument=json.dumps(wanted)
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchEntity":
                raise
            raise ClusterError(f"aws.ebs_csi_role: there is no IAM role {aws.section.ebs_csi_role}") from None
    return "changed" if found else "created"


def remove(aws: Aws) -> str:
    if current(aws) is None:
        return "not there"
    with explained(f"remove a policy of role {aws.section.ebs_csi_role}", "iam:DeleteRolePolicy"):
        aws.client("iam").delete_role_policy(RoleName=aws.section.ebs_csi_role, PolicyName=POLICY)
    return "deleted"
