"""What a stage works with. Everything that touches the world is made here, late, and can be replaced by a test."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from app.errors import ClusterError
from cluster.aws.session import Aws
from cluster.clock import Clock, SystemClock
from cluster.config import ClusterConfig
from cluster.helm import Helm
from cluster.kube.api import Api
from cluster.kube.connect import eks_signer, from_eks, from_kubeconfig
from cluster.kube.transport import Transport
from cluster.kube.waiting import Say, Waiter
from cluster.render.bundle import Renderer


@dataclass(frozen=True)
class Options:
    """How, not what: nothing here changes the result."""

    dry_run: bool = False
    force_conflicts: bool = False
    format_curvine: bool = False
    timeout_s: float = 3600


@dataclass
class Context:
    config: ClusterConfig
    say: Say
    options: Options = Options()
    clock: Clock = field(default_factory=SystemClock)
    helm: Helm = field(default_factory=Helm)
    connect: Callable[["Context"], Transport] | None = None
    aws_session: object | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer(self.config)

    @cached_property
    def aws(self) -> Aws:
        assert self.config.aws is not None, "stages ask config.aws first"
        return Aws(self.config.aws, self.aws_session)

    @cached_property
    def api(self) -> Api:
        return Api((self.connect or _connect)(self), self.clock)

    @property
    def waiter(self) -> Waiter:
        return Waiter(self.clock, self.say)


def _connect(context: Context) -> Transport:
    config = context.config
    if config.kube_context is not None:
        return from_kubeconfig(config.kube_context)
    if config.aws is None:
        raise ClusterError("no way to the cluster: give kube_context or aws")
    signer = eks_signer(context.aws.session, config.aws.region)
    return from_eks(context.aws.client("eks"), signer, config.aws.eks_cluster, context.clock)
