"""Which engine replicas run, and on which node: asked of Ray's dashboard."""

from dataclasses import dataclass
from typing import Any

import httpx

from app.errors import ClusterError

# app.main names its engine deployments so.
_ENGINE = "engine:"


@dataclass(frozen=True)
class Replica:
    id: str
    node: str


def running(http: httpx.Client, dashboard: str, application: str, token: str) -> list[Replica]:
    """Raises ClusterError when the dashboard does not answer or refuses the token."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = http.get(f"{dashboard}/api/serve/applications/", headers=headers)
    except httpx.HTTPError as error:
        raise ClusterError(f"Ray's dashboard {dashboard} does not answer: {error}") from error
    if answer.status_code in (401, 403):
        raise ClusterError(f"Ray's dashboard {dashboard} refuses the token: is RAY_AUTH_TOKEN that of the cluster?")
    if answer.status_code != 200:
        raise ClusterError(f"Ray's dashboard {dashboard}: HTTP {answer.status_code}: {answer.text[:300]}")
    return parse(answer.json(), application)


def parse(document: dict[str, Any], application: str) -> list[Replica]:
    """The RUNNING engine replicas of an application, in a stable order."""
    found = (document.get("applications") or {}).get(application)
    if found is None:
        names = ", ".join(document.get("applications") or {}) or "none"
        raise ClusterError(f"Ray Serve has no application {application}; it has: {names}")
    deployments = {name: d for name, d in found.get("deployments", {}).items() if name.startswith(_ENGINE)}
    replicas = [
        Replica(each["replica_id"], each["node_id"])
        for deployment in deployments.values()
        for each in deployment.get("replicas", [])
        if each.get("state") == "RUNNING"
    ]
    return sorted(replicas, key=lambda replica: (replica.node, replica.id))


def pair(replicas: list[Replica]) -> tuple[Replica, Replica]:
    """Two replicas on different nodes. Raises ClusterError when there are none."""
    for other in replicas[1:]:
        if other.node != replicas[0].node:
            return replicas[0], other
    raise ClusterError(
        f"{len(replicas)} replicas on {len({r.node for r in replicas})} node(s): two on different nodes are needed; "
        "raise `replicas` or wait until a second worker is up"
    )
