"""Running stages in order, after everything that can be checked has been checked."""

from collections.abc import Sequence

from app.errors import ClusterError
from cluster.aws import hyperpod
from cluster.stages.context import Context
from cluster.stages.curvine import Curvine
from cluster.stages.objects import ObjectStage
from cluster.stages.operators import Operators
from cluster.stages.proof import Proof
from cluster.stages.serving import Serving
from cluster.stages.stage import Stage
from cluster.stages.tiered import TieredStorage

STAGES: tuple[Stage, ...] = (TieredStorage(), Operators(), Curvine(), Serving(), Proof())
NAMES = [stage.name for stage in STAGES]

# AWS's example account: an image there cannot be anybody's.
_EXAMPLE_ACCOUNT = "111122223333"


def chosen(names: Sequence[str]) -> list[Stage]:
    """The named stages in their order; all when none is named. Raises ClusterError for an unknown name."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ClusterError(f"there is no stage {', '.join(unknown)}; there are: {', '.join(NAMES)}")
    return [stage for stage in STAGES if not names or stage.name in names]


def preflight(context: Context) -> None:
    """Everything that can be refused before anything is touched: files, credentials, region, nodes, versions."""
    _ = context.renderer
    config = context.config
    if _EXAMPLE_ACCOUNT in config.image or (config.endpoint and _EXAMPLE_ACCOUNT in config.endpoint.image):
        raise ClusterError(
            f"image {config.image} is the example: build cluster/images, push it, and name it in `image`"
        )
    if config.aws is not None:
        _check_aws(context)
    major, minor = context.api.version()
    if f"{major}.{minor}" != config.kubernetes:
        raise ClusterError(
            f"the cluster runs Kubernetes {major}.{minor}, the configuration says {config.kubernetes}: set `kubernetes`"
        )


def _check_aws(context: Context) -> None:
    config = context.config
    assert config.aws is not None
    context.say(f"AWS: {context.aws.caller()} in {config.aws.region}")
    cluster = hyperpod.describe(context.aws)
    if not cluster.eks_arn.endswith(f"cluster/{config.aws.eks_cluster}"):
        raise ClusterError(
            f"HyperPod cluster {config.aws.hyperpod_cluster} is orchestrated by {cluster.eks_arn or 'Slurm'}, not by "
            f"the EKS cluster {config.aws.eks_cluster}: set aws.eks_cluster"
        )
    wanted: dict[str, int] = {}
    if config.workers.instance_type is not None:
        wanted[config.workers.instance_type] = config.workers.count
    if config.endpoint is not None:
        wanted[config.endpoint.instance_type] = wanted.get(config.endpoint.instance_type, 0) + config.endpoint.replicas
    hyperpod.check_nodes(cluster, wanted)


def apply(context: Context, stages: Sequence[Stage]) -> None:
    preflight(context)
    for stage in stages:
        context.say(f"{stage.name}: {stage.title}")
        stage.check(context)
        stage.apply(context)
    context.say("dry run: nothing was changed" if context.options.dry_run else "done")


def verify(context: Context, stages: Sequence[Stage]) -> None:
    for stage in stages:
        context.say(f"{stage.name}: {stage.title}")
        for line in stage.verify(context):
            context.say(f"  {line}")


def status(context: Context, stages: Sequence[Stage]) -> bool:
    """Say the state of each stage; True when all are applied."""
    complete = True
    for stage in stages:
        found = stage.status(context)
        complete = complete and found.state == "applied"
        context.say(f"{stage.name}: {found.state}")
        for line in found.lines:
            context.say(f"  {line}")
    return complete


def destroy(context: Context, stages: Sequence[Stage]) -> None:
    """In reverse order. Stages that were never applied are passed over quickly.

    Raises:
        ClusterError: a stage that would stay stands on one that would go (Ray cannot end without its operator).
    """
    for stage in stages:
        for later in STAGES[STAGES.index(stage) + 1 :]:
            if later not in stages and isinstance(later, ObjectStage) and later.inventory(context).read():
                raise ClusterError(f"stage {later.name} stands on {stage.name}: destroy {later.name} first, or both")
    for stage in reversed(stages):
        context.say(f"{stage.name}: {stage.title}")
        stage.destroy(context)
    context.say("dry run: nothing was changed" if context.options.dry_run else "gone")
