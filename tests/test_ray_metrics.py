"""Totals grow by what was added, states are what they are, and a count that begins anew does not make a total fall."""

import pytest

from app.ray_metrics import RayMetrics, Sample
from tests.recorded_metrics import Values, recording


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> Values:
    return recording(monkeypatch)


def test_a_state_is_set_and_a_total_grows_by_the_difference(values: Values) -> None:
    metrics = RayMetrics()
    for total, state in ((0, 5), (3, 4), (3, 4), (7, 0)):
        metrics.publish([Sample("done_total", {"a": "x"}, total), Sample("waiting", {"a": "x"}, state)])
    assert values == {("done_total", "x"): 7, ("waiting", "x"): 0}


def test_a_count_that_begins_anew_adds_to_the_total(values: Values) -> None:
    metrics = RayMetrics()
    for total in (5, 2, 4):
        metrics.publish([Sample("done_total", {}, total)])
    assert values == {("done_total",): 9}


def test_labels_are_kept_apart(values: Values) -> None:
    metrics = RayMetrics()
    for count in (1, 2):
        metrics.publish([Sample("done_total", {"a": name}, count * scale) for name, scale in (("x", 1), ("y", 10))])
    assert values == {("done_total", "x"): 2, ("done_total", "y"): 20}


def test_without_ray_it_is_silent() -> None:
    RayMetrics().publish([Sample("some_total", {"a": "x"}, 1.0), Sample("some", {"a": "x"}, 1.0)])
