"""Configurations of the project, rendered once."""

from functools import cache

import pytest

from cluster.config import ClusterConfig, load_config
from cluster.files import CONFIGS
from cluster.render.bundle import Renderer

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
