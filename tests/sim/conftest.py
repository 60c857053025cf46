"""A small fleet and small workloads: tenths of a second each."""

from dataclasses import replace

import pytest

from app.sim.hardware import Speed, speed_of
from app.sim.spec import FleetSpec


@pytest.fixture
def speed() -> Speed:
    """An L40S with room for a few prompts only, so that L0 evicts."""
    return replace(speed_of("L40S", "llama-3.1-8b"), l0_tokens=20_000)


@pytest.fixture
def spec(speed: Speed) -> FleetSpec:
    return FleetSpec(4, speed, per_node=2, l1_bytes=4e9, l2_bytes=40e9)
