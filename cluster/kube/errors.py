"""What the API server refuses, said so that a person knows what to do."""

import re

from app.errors import ClusterError
from cluster.kube.transport import Answer

# Worth another attempt: too many requests, the server or a webhook in trouble, a proxy in between.
TRANSIENT = {429, 500, 502, 503, 504}

# Four ways in which Kubernetes says that a field stays as created (of jobs, sets and classes, role bindings, claims).
_UNCHANGEABLE = re.compile("immutable|updates to .* are forbidden|cannot change|can not be less than")


class ForbiddenError(ClusterError):
    """The credentials may not do this (401, 403)."""


class FieldConflictError(ClusterError):
    """Another field manager owns fields that we want to set."""


class InvalidError(ClusterError):
    """The server finds the object invalid, or a field of it cannot be changed (422)."""


class UnknownKindError(ClusterError):
    """The server does not serve this kind: its CRD is not installed."""


def refused(action: str, what: str, answer: Answer) -> ClusterError:
    """The error for an answer that is not a success. `action` is a verb: get, apply, delete, ..."""
    message = answer.message
    if answer.status == 401:
        return ForbiddenError(f"cannot {action} {what}: the cluster does not accept these credentials ({message})")
    if answer.status == 403:
        return _forbidden(action, what, message)
    if answer.status == 404:
        return ClusterError(f"cannot {action} {what}: not found ({message}); has an earlier stage been applied?")
    if answer.status == 409:
        return _conflict(action, what, answer)
    if answer.status == 422:
        hint = "; destroy the stage and apply it again to change this" if _UNCHANGEABLE.search(message) else ""
        return InvalidError(f"cannot {action} {what}: the cluster finds it invalid: {message}{hint}")
    if answer.status in TRANSIENT:
        return ClusterError(f"cannot {action} {what}: still HTTP {answer.status} after several attempts ({message})")
    return ClusterError(f"cannot {action} {what}: HTTP {answer.status}: {message}")


def _forbidden(action: str, what: str, message: str) -> ClusterError:
    if "exceeded quota" in message:
        return ClusterError(f"cannot {action} {what}: {message}; raise the namespace's ResourceQuota")
    if "violates PodSecurity" in message:
        return ClusterError(f"cannot {action} {what}: {message}; relax the namespace's pod-security label")
    return ForbiddenError(
        f"cannot {action} {what}: forbidden ({message}); your user needs that right (on EKS: an access entry with "
        "AmazonEKSClusterAdminPolicy)"
    )


def _conflict(action: str, what: str, answer: Answer) -> ClusterError:
    causes = (answer.body.get("details") or {}).get("causes") or []
    fields = [cause for cause in causes if cause.get("reason") == "FieldManagerConflict"]
    if not fields:
        return ClusterError(f"cannot {action} {what}: it was changed at the same time ({answer.message}); apply again")
    owners = "; ".join(f"{cause.get('field')}: {cause.get('message')}" for cause in fields[:5])
    return FieldConflictError(
        f"cannot {action} {what}: others own fields of it ({owners}). Nothing of it was changed. Take the fields over "
        "with --force-conflicts, or leave them to their owner"
    )
