"""Are the EBS volumes really gone? Asked of EC2, because a forgotten volume costs money."""

from collections.abc import Iterable

from botocore.exceptions import ClientError

from cluster.aws.session import Aws, explained


def still_there(aws: Aws, volume_ids: Iterable[str]) -> list[str]:
    """Those of the ids that EC2 still has."""
    left = []
    for volume in volume_ids:
        with explained(f"look for volume {volume}", "ec2:DescribeVolumes"):
            try:
                if aws.client("ec2").describe_volumes(VolumeIds=[volume])["Volumes"]:
                    left.append(volume)
            except ClientError as error:
                if error.response["Error"]["Code"] != "InvalidVolume.NotFound":
                    raise
    return left
