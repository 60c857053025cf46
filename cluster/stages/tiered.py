"""Stage 1: HyperPod's tiered storage, a memory pool on every node that its Inference Operator uses as L2.

Our own fleet (stage 4) does not need it; the endpoint of the Inference Operator does.
"""

from app.errors import ClusterError
from cluster.aws import hyperpod
from cluster.kube.readiness import readiness
from cluster.stages.context import Context
from cluster.stages.stage import Stage, StageStatus

_NAMESPACE, _DAEMON = "aws-hyperpod", "ai-toolkit"
_DAEMON_TIMEOUT_S = 900


class TieredStorage(Stage):
    name = "tiered-storage"
    title = "HyperPod tiered storage"

    def plan(self, context: Context) -> list[str]:
        wanted = context.config.tiered_storage
        if wanted is None:
            return ["nothing: tiered_storage is not configured"]
        cluster = hyperpod.describe(context.aws)
        if _as_wanted(cluster, wanted.memory_percent):
            return [f"nothing: {cluster.tiered()} already"]
        return [f"UpdateCluster: Enable at {wanted.memory_percent} % (now: {cluster.tiered()}), NodeRecovery kept"]

    def apply(self, context: Context) -> None:
        wanted = context.config.tiered_storage
        if wanted is None:
            context.say("  not configured: nothing to do")
            return
        if context.options.dry_run:
            context.say("  would " + self.plan(context)[0])
            return
        cluster = hyperpod.wait_in_service(context.aws, context.waiter, context.options.timeout_s)
        if not _as_wanted(cluster, wanted.memory_percent):
            hyperpod.remember(context.aws, cluster)
            hyperpod.set_tiered(context.aws, cluster, "Enable", wanted.memory_percent)
            cluster = hyperpod.wait_in_service(context.aws, context.waiter, context.options.timeout_s)
        if not _as_wanted(cluster, wanted.memory_percent):
            raise ClusterError(f"the HyperPod cluster took the update but says {cluster.tiered()}: apply again")

    def status(self, context: Context) -> StageStatus:
        if context.config.tiered_storage is None:
            return StageStatus("applied", ("not configured: nothing to do",))
        cluster = hyperpod.describe(context.aws)
        state = "applied" if cluster.tiered_mode == "Enable" else "absent"
        return StageStatus(state, (f"cluster {cluster.status}, tiered storage {cluster.tiered()}",))  # type: ignore[arg-type]

    def verify(self, context: Context) -> list[str]:
        wanted = context.config.tiered_storage
        if wanted is None:
            return ["not configured"]
        cluster = hyperpod.describe(context.aws)
        if not _as_wanted(cluster, wanted.memory_percent):
            raise ClusterError(
                f"tiered storage is {cluster.tiered()}, wanted {wanted.memory_percent} %: apply this stage"
            )
        return [f"tiered storage {cluster.tiered()}", _daemon(context)]

    def destroy(self, context: Context) -> None:
        if context.config.tiered_storage is None:
            return
        cluster = hyperpod.describe(context.aws)
        before = hyperpod.remembered(context.aws, cluster)
        if before is None:
            context.say(f"  left as it is ({cluster.tiered()}): this project did not change it")
        elif context.options.dry_run:
            context.say(f"  would UpdateCluster: {before[0]} as before (now: {cluster.tiered()}), NodeRecovery kept")
        else:
            self._restore(context, *before)

    def _restore(self, context: Context, mode: hyperpod.Mode, percent: int | None) -> None:
        cluster = hyperpod.wait_in_service(context.aws, context.waiter, context.options.timeout_s)
        if cluster.tiered_mode != mode or (mode == "Enable" and cluster.tiered_percent != percent):
            hyperpod.set_tiered(context.aws, cluster, mode, percent)
            cluster = hyperpod.wait_in_service(context.aws, context.waiter, context.options.timeout_s)
        hyperpod.forget(context.aws, cluster)
        context.say(f"  {cluster.tiered()}, as before")


def _as_wanted(cluster: hyperpod.HyperPod, percent: int) -> bool:
    return cluster.tiered_mode == "Enable" and cluster.tiered_percent == percent


def _daemon(context: Context) -> str:
    """HyperPod starts a DaemonSet for it on every node; its exact name is AWS's business."""
    sets = context.api.list("apps/v1", "DaemonSet", _NAMESPACE)
    ours = [each for each in sets if _DAEMON in each["metadata"]["name"]]
    if not ours:
        raise ClusterError(
            f"no DaemonSet {_DAEMON} in namespace {_NAMESPACE}: tiered storage is on, but not on the nodes yet"
        )
    state = readiness(ours[0])
    if state.state != "ready":
        raise ClusterError(f"DaemonSet {ours[0]['metadata']['name']}: {state.text}; try again in a few minutes")
    return f"DaemonSet {ours[0]['metadata']['name']}: {state.text}"
