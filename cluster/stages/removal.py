"""Taking objects away, newest first, each confirmed gone; volumes most of all."""

from collections.abc import Iterable, Sequence

from app.errors import ClusterError
from cluster.aws import volumes
from cluster.kube.errors import UnknownKindError
from cluster.kube.readiness import Readiness
from cluster.render.objects import Manifest, Ref
from cluster.stages.context import Context

_GONE_S = 900
# Made by Curvine's CSI driver for each mount: nobody else's, and gone with it.
_FUSE_PODS = "curvine-csi-standalone-"
# Their controllers must live until they are gone; everything else can go at once.
_AWAITED = {
    "Namespace",
    "RayService",
    "InferenceEndpointConfig",
    "PersistentVolumeClaim",
    "StatefulSet",
    "Deployment",
    "Job",
    "DaemonSet",
}

# They own pods (and more) that must be gone before what those use is taken away.
_OWNERS = _AWAITED - {"Namespace", "PersistentVolumeClaim"}


def remove(context: Context, refs: Sequence[Ref]) -> None:
    """Delete in the reverse of the order in which they were applied. With dry_run: only say so."""
    for ref in reversed(refs):
        try:
            _remove_one(context, ref)
        except UnknownKindError:
            continue  # its CRD is gone, and every object of it


def _remove_one(context: Context, ref: Ref) -> None:
    reason = _kept(context, ref)
    if reason:
        context.say(f"  {ref}: kept, {reason}")
    elif context.options.dry_run:
        context.say(f"  would delete {ref}")
    elif context.api.delete(ref, dependents_first=ref.kind in _OWNERS):
        context.say(f"  deleted {ref}")
        if ref.kind in _AWAITED:
            context.waiter.gone(context.api, ref, _GONE_S)


def _kept(context: Context, ref: Ref) -> str | None:
    """Why an object stays although we applied it: others live in it or from it."""
    if ref.kind == "CustomResourceDefinition":
        users = _users(context, ref)
        return f"others use it: {', '.join(users[:3])}" if users else None
    if ref.kind == "Namespace":
        pods = [pod["metadata"]["name"] for pod in context.api.list("v1", "Pod", ref.name) if _alive(pod)]
        return f"pods of others run in it: {', '.join(pods[:3])}" if pods and not context.options.dry_run else None
    return None


def _alive(pod: Manifest) -> bool:
    if pod["metadata"]["name"].startswith(_FUSE_PODS):
        return False
    return "deletionTimestamp" not in pod["metadata"] and pod.get("status", {}).get("phase") not in (
        "Succeeded",
        "Failed",
    )


def _users(context: Context, ref: Ref) -> list[str]:
    """Objects of the kind that a definition defines, anywhere in the cluster."""
    definition = context.api.get(ref)
    if definition is None:
        return []
    spec = definition["spec"]
    version = next((v["name"] for v in spec["versions"] if v.get("served")), None)
    if version is None:
        return []
    found = context.api.list(f"{spec['group']}/{version}", spec["names"]["kind"], None)
    return [f"{o['metadata'].get('namespace', '')}/{o['metadata']['name']}" for o in found]


def volumes_of(context: Context, namespace: str, names: Iterable[str] | None = None) -> tuple[list[Ref], list[str]]:
    """(persistent volumes, EBS volume ids) behind the claims of a namespace; with `names` only behind those."""
    wanted = None if names is None else set(names)
    refs, disks = [], []
    for claim in context.api.list("v1", "PersistentVolumeClaim", namespace):
        volume = claim["spec"].get("volumeName")
        if not volume or (wanted is not None and claim["metadata"]["name"] not in wanted):
            continue
        refs.append(Ref("v1", "PersistentVolume", None, volume))
        handle = ((context.api.get(refs[-1]) or {}).get("spec", {}).get("csi") or {}).get("volumeHandle", "")
        disks += [handle] if handle.startswith("vol-") else []
    return refs, disks


def remove_claims(context: Context, namespace: str, prefix: str = "") -> None:
    """Delete claims that StatefulSets made (no inventory names them), and wait until they are gone."""
    for claim in context.api.list("v1", "PersistentVolumeClaim", namespace):
        name = claim["metadata"]["name"]
        if name.startswith(prefix):
            _remove_one(context, Ref("v1", "PersistentVolumeClaim", namespace, name))


def confirm_gone(context: Context, refs: Sequence[Ref], disks: Sequence[str]) -> None:
    """Wait until the volumes are gone; retained ones are named, because they go on costing money."""
    for ref in refs:
        found = context.api.get(ref)
        if found is not None and found["spec"].get("persistentVolumeReclaimPolicy") == "Retain":
            context.say(f"  {ref}: kept by its reclaim policy (Retain)")
        else:
            context.waiter.gone(context.api, ref, _GONE_S)
    if disks and context.config.aws is not None:
        context.waiter.until("EBS volumes", lambda: _disks(context, disks), _GONE_S)


def _disks(context: Context, disks: Sequence[str]) -> Readiness:
    left = volumes.still_there(context.aws, disks)
    return Readiness("waiting" if left else "ready", f"still there: {', '.join(left)}" if left else "gone")


def need_job_output(context: Context, namespace: str, job: str) -> str:
    """The log of a Job's newest pod. Raises ClusterError when it has none."""
    pods = context.api.list("v1", "Pod", namespace, f"job-name={job}")
    if not pods:
        raise ClusterError(f"Job {namespace}/{job} has no pod: look at `kubectl -n {namespace} describe job {job}`")
    newest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    return context.api.logs(namespace, newest["metadata"]["name"])
