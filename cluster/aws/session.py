"""AWS clients, made when they are asked for, and what AWS refuses, said with the remedy."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
)

from app.errors import ClusterError
from cluster.config import AwsSection

_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException"}
_LIMIT = {"ResourceLimitExceeded", "LimitExceeded", "LimitExceededException", "ServiceQuotaExceededException"}
_BUSY = {"ConflictException", "ResourceInUse", "ResourceInUseException"}
_NO_ANSWER = (ConnectionClosedError, ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError)
_CREDENTIALS = "run `aws sso login` or `aws configure`, or set AWS_PROFILE"


class AwsLostError(ClusterError):
    """No answer from AWS: a wait goes on, anything else stops."""


@contextmanager
def explained(action: str, permission: str) -> Iterator[None]:
    """Turns what boto3 raises inside into ClusterError. `permission` is the IAM action that `action` needs."""
    try:
        yield
    except (NoCredentialsError, PartialCredentialsError, ProfileNotFound) as error:
        raise ClusterError(f"cannot {action}: no usable AWS credentials ({error}); {_CREDENTIALS}") from None
    except ParamValidationError as error:
        raise ClusterError(f"cannot {action}: the installed botocore refuses the request: {error}") from None
    except ClientError as error:
        raise _refused(action, permission, error) from error
    except _NO_ANSWER as error:
        raise AwsLostError(
            f"cannot {action}: no answer from AWS ({error}); apply again when it is reachable"
        ) from error
    except BotoCoreError as error:
        raise ClusterError(f"cannot {action}: {error}") from error


def _refused(action: str, permission: str, error: ClientError) -> ClusterError:
    code, message = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
    if code in _DENIED:
        return ClusterError(f"cannot {action}: your credentials lack {permission} ({message})")
    if code in _EXPIRED:
        return ClusterError(f"cannot {action}: AWS does not accept these credentials ({code}); {_CREDENTIALS}")
    if code in _LIMIT:
        return ClusterError(
            f"cannot {action}: a quota is reached ({message}); raise it in Service Quotas, then apply again"
        )
    if code in _BUSY:
        return ClusterError(f"cannot {action}: another change is under way ({message}); apply again when it is over")
    return ClusterError(f"cannot {action}: {code}: {message}")


class Aws:
    """Clients of one region. `make` is boto3.Session or a stand-in with the same `client(name)`."""

    def __init__(self, section: AwsSection, session: Any = None) -> None:
        self.section = section
        self._session = session
        self._clients: dict[str, Any] = {}

    @cached_property
    def session(self) -> Any:
        import boto3

        with explained("use AWS", "sts:GetCallerIdentity"):
            return self._session or boto3.Session(profile_name=self.section.profile, region_name=self.section.region)

    def client(self, name: str) -> Any:
        """One client per service, kept. Standard retries: throttling and passing errors are waited out by botocore."""
        if name not in self._clients:
            from botocore.config import Config

            config = Config(retries={"mode": "standard", "total_max_attempts": 5}, connect_timeout=10, read_timeout=30)
            with explained(f"use {name}", "sts:GetCallerIdentity"):
                self._clients[name] = self.session.client(name, region_name=self.section.region, config=config)
        return self._clients[name]

    def caller(self) -> str:
        """The ARN whose credentials these are. The first call to make: it needs no permission at all."""
        with explained("ask who you are", "sts:GetCallerIdentity"):
            return str(self.client("sts").get_caller_identity()["Arn"])
