"""Running a Job to its end and reading what it printed."""

from dataclasses import dataclass

from app.errors import ClusterError
from cluster.kube.readiness import readiness
from cluster.render.objects import Manifest, Ref, ref_of
from cluster.stages.context import Context
from cluster.stages.removal import need_job_output

_GONE_S = 300


@dataclass(frozen=True)
class JobResult:
    output: str
    node: str


def run_job(context: Context, manifest: Manifest, timeout_s: float = 1200) -> JobResult:
    """Replace an earlier run, wait for the end, and return the log.

    Raises:
        ClusterError: it failed or did not end; the message carries the end of its log.
    """
    ref = ref_of(manifest)
    assert ref.namespace is not None, ref
    if context.api.delete(ref, dependents_first=True):
        context.waiter.gone(context.api, ref, _GONE_S)
    context.api.apply(manifest)
    try:
        context.waiter.ready(context.api, [ref], timeout_s)
    except ClusterError as error:
        raise ClusterError(f"{error}\n{_tail(context, ref)}") from None
    return JobResult(need_job_output(context, ref.namespace, ref.name), _node(context, ref))


def _tail(context: Context, ref: Ref) -> str:
    assert ref.namespace is not None, ref
    try:
        return "end of its log: " + need_job_output(context, ref.namespace, ref.name)[-1500:].strip()
    except ClusterError as error:
        return f"no log: {error}"


def _node(context: Context, ref: Ref) -> str:
    pods = context.api.list("v1", "Pod", ref.namespace, f"job-name={ref.name}")
    return str(pods[0]["spec"].get("nodeName", "")) if pods else ""


def finished(context: Context, ref: Ref) -> bool:
    found = context.api.get(ref)
    return found is not None and readiness(found).state == "ready"
