"""When is an object as it should be? One small judgement per kind, from the object alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from cluster.render.objects import Manifest

State = Literal["ready", "waiting", "failed"]


@dataclass(frozen=True)
class Readiness:
    state: State
    text: str


def readiness(manifest: Manifest) -> Readiness:
    """Kinds without a judgement are ready as soon as they are there."""
    judge = _JUDGES.get(manifest["kind"])
    return judge(manifest) if judge else Readiness("ready", "there")


def is_judged(kind: str) -> bool:
    """Is there anything to wait for in objects of this kind?"""
    return kind in _JUDGES


def _deployment(manifest: Manifest) -> Readiness:
    status, wanted = manifest.get("status") or {}, manifest["spec"].get("replicas", 1)
    for condition in status.get("conditions") or []:
        if condition["type"] == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            return Readiness("failed", condition.get("message", "did not progress"))
    return _counted(manifest, status.get("availableReplicas", 0), status.get("updatedReplicas", 0), wanted)


def _stateful_set(manifest: Manifest) -> Readiness:
    status, wanted = manifest.get("status") or {}, manifest["spec"].get("replicas", 1)
    return _counted(manifest, status.get("readyReplicas", 0), status.get("updatedReplicas", wanted), wanted)


def _daemon_set(manifest: Manifest) -> Readiness:
    status = manifest.get("status") or {}
    wanted = status.get("desiredNumberScheduled", 0)
    return _counted(manifest, status.get("numberReady", 0), status.get("updatedNumberScheduled", 0), wanted)


def _counted(manifest: Manifest, ready: int, updated: int, wanted: int) -> Readiness:
    if _stale(manifest):
        return Readiness("waiting", "not seen by its controller yet")
    done = ready >= wanted and updated >= wanted
    return Readiness("ready" if done else "waiting", f"{ready} of {wanted} ready")


def _stale(manifest: Manifest) -> bool:
    generation = manifest["metadata"].get("generation", 0)
    return bool((manifest.get("status") or {}).get("observedGeneration", generation) < generation)


def _claim(manifest: Manifest) -> Readiness:
    phase = (manifest.get("status") or {}).get("phase", "Pending")
    if phase == "Lost":
        return Readiness("failed", "its volume is gone (Lost)")
    return Readiness("ready" if phase == "Bound" else "waiting", phase)


def _job(manifest: Manifest) -> Readiness:
    status = manifest.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition.get("status") == "True" and condition["type"] == "Complete":
            return Readiness("ready", "complete")
        if condition.get("status") == "True" and condition["type"] == "Failed":
            return Readiness("failed", condition.get("message") or condition.get("reason") or "failed")
    return Readiness("waiting", f"{status.get('active', 0)} running")


def _definition(manifest: Manifest) -> Readiness:
    conditions = {c["type"]: c["status"] for c in (manifest.get("status") or {}).get("conditions") or []}
    return Readiness("ready" if conditions.get("Established") == "True" else "waiting", "established")


# Reasons after which KubeRay itself does not try again.
_TERMINAL = {"InitializingTimeout", "ValidationFailed"}


def _ray_service(manifest: Manifest) -> Readiness:
    status = manifest.get("status") or {}
    if _stale(manifest) or not status:
        return Readiness("waiting", "not seen by KubeRay yet")
    nothing: dict[str, Any] = {}
    ready = next((c for c in status.get("conditions") or [] if c["type"] == "Ready"), nothing)
    if ready.get("reason") in _TERMINAL:
        return Readiness("failed", f"{ready['reason']}: {ready.get('message', '')}")
    applications = _applications(status)
    failed = {name: message for name, (state, message) in applications.items() if state == "DEPLOY_FAILED"}
    if failed:
        return Readiness("failed", "; ".join(f"{name}: DEPLOY_FAILED: {message}" for name, message in failed.items()))
    running = [name for name, (state, _) in applications.items() if state == "RUNNING"]
    text = f"{len(running)} of {len(applications)} applications running ({ready.get('reason', 'Initializing')})"
    # Ready means one endpoint; all replicas are up only when every application runs.
    done = ready.get("status") == "True" and applications and len(running) == len(applications)
    return Readiness("ready" if done else "waiting", text)


def _applications(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Of the cluster that is being started if there is one, else of the one that serves."""
    pending = (status.get("pendingServiceStatus") or {}).get("applicationStatuses") or {}
    active = (status.get("activeServiceStatus") or {}).get("applicationStatuses") or {}
    return {name: (a.get("status", ""), a.get("message", "")) for name, a in (pending or active).items()}


def _endpoint(manifest: Manifest) -> Readiness:
    state = str((manifest.get("status") or {}).get("state", "not seen by the operator yet"))
    if state == "DeploymentFailed":
        return Readiness("failed", str((manifest.get("status") or {}).get("conditions", state)))
    return Readiness("ready" if state == "DeploymentComplete" else "waiting", state)


_JUDGES: dict[str, Callable[[Manifest], Readiness]] = {
    "CustomResourceDefinition": _definition,
    "DaemonSet": _daemon_set,
    "Deployment": _deployment,
    "InferenceEndpointConfig": _endpoint,
    "Job": _job,
    "PersistentVolumeClaim": _claim,
    "RayService": _ray_service,
    "StatefulSet": _stateful_set,
}
