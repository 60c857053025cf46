"""Stopped anywhere, apply continues and destroy cleans up: at any request, by refusal and by a cut line."""

from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import ClusterError
from cluster.kube.transport import Answer, Call, ConnectionLostError
from cluster.stages import run
from tests.cluster.conftest import World, renderer
from tests.cluster.fake_cluster import FakeCluster, refusal

BUILD = run.chosen(["tiered-storage", "operators", "curvine", "serving"])


class Interrupted(FakeCluster):
    """From its `at`-th request on, everything fails, until `heal`."""

    def __init__(self, at: int, *, cut: bool) -> None:
        super().__init__()
        self.at, self.cut, self.seen = at, cut, 0

    def heal(self) -> None:
        self.at = 1 << 30

    def send(self, call: Call) -> Answer:
        self.seen += 1
        if self.seen < self.at:
            return super().send(call)
        if not self.cut:
            return refusal(403, "no longer allowed", "Forbidden")
        if self.seen % 2:  # carried out, but the answer does not arrive
            super().send(call)
        raise ConnectionLostError("cable")


def interrupted(at: int, *, cut: bool) -> tuple[World, Interrupted]:
    world, kube = World(renderer("g6e-fleet").config), Interrupted(at, cut=cut)
    kube.objects = dict(world.kube.objects)
    world.kube = kube
    return world, kube


def stop(world: World) -> str:
    """Apply until it is interrupted; the message, or nothing if it was not."""
    try:
        run.apply(world.context(timeout_s=30), BUILD)
    except ClusterError as error:
        return str(error)
    return ""


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 140), st.booleans())
def test_apply_goes_on_from_anywhere(at: int, cut: bool) -> None:
    world, kube = interrupted(at, cut=cut)
    stop(world)
    kube.heal()
    run.apply(world.context(), BUILD)
    assert run.status(world.context(), BUILD)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 140), st.booleans())
def test_destroy_cleans_up_from_anywhere(at: int, cut: bool) -> None:
    world, kube = interrupted(at, cut=cut)
    others = set(kube.objects)
    stop(world)
    kube.heal()
    run.destroy(world.context(), run.chosen([]))
    assert set(kube.objects) == others


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 140), st.booleans())
def test_an_interrupted_destroy_goes_on(at: int, cut: bool) -> None:
    world, kube = interrupted(1 << 30, cut=cut)
    others = set(kube.objects)
    run.apply(world.context(), BUILD)
    kube.at = kube.seen + at
    try:
        run.destroy(world.context(timeout_s=30), run.chosen([]))
    except ClusterError:
        kube.heal()
        run.destroy(world.context(), run.chosen([]))
    assert set(kube.objects) == others


def test_the_range_reaches_to_the_end() -> None:
    assert "no longer allowed" in stop(interrupted(100, cut=False)[0])
    assert "onnection" in stop(interrupted(100, cut=True)[0])
    assert stop(interrupted(141, cut=False)[0]) == ""
