"""Configurations of the project, rendered once, and a world to deploy them into."""

from functools import cache
from typing import Any

import pytest

from cluster.config import ClusterConfig, load_config
from cluster.files import CONFIGS
from cluster.helm import Helm
from cluster.render.bundle import Renderer
from cluster.stages.context import Context, Options
from tests.cluster.fake_aws import FakeAws
from tests.cluster.fake_cluster import FakeClock, FakeCluster
from tests.cluster.fake_helm import FakeHelm

NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))


@cache
def renderer(name: str) -> Renderer:
    return Renderer(load_config(CONFIGS / f"{name}.yaml"))


@pytest.fixture(params=NAMES)
def rendered(request: pytest.FixtureRequest) -> Renderer:
    """Each of cluster/configs in turn."""
    return renderer(request.param)


@pytest.fixture
def fleet() -> Renderer:
    return renderer("g6e-fleet")


@pytest.fixture
def config(fleet: Renderer) -> ClusterConfig:
    return fleet.config


class World:
    """A whole world for the deployer: cluster, AWS, helm and time, all in memory."""

    def __init__(self, config: ClusterConfig) -> None:
        self.kube, self.aws, self.helm, self.clock = FakeCluster(), FakeAws(), FakeHelm(), FakeClock()
        self.config = config.model_copy(update={"image": "registry.example/tierserve:1"})
        self.said: list[str] = []
        ai_toolkit = {"name": "ai-toolkit", "namespace": "aws-hyperpod"}
        self.kube.add({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": ai_toolkit, "spec": {}})

    def context(self, **options: Any) -> Context:
        return Context(
            self.config,
            self.said.append,
            Options(**options),
            clock=self.clock,
            helm=Helm(self.helm),
            connect=lambda _: self.kube,
            aws_session=self.aws,
        )

    @property
    def text(self) -> str:
        return "\n".join(self.said)


@pytest.fixture
def world(config: ClusterConfig) -> World:
    made = World(config)
    digest = "0f" * 32
    made.kube.logs = {"tierserve-shared-write-x": digest, "tierserve-shared-read-x": digest}
    return made
