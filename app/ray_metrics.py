"""Totals and states of a process as Ray metrics, which Ray exports to Prometheus from each node."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure, as it is now. Samples of one `name` have the same labels."""

    name: str
    """A total's ends in `_total`: it only ever grows, until whoever counts begins anew."""
    labels: Mapping[str, str]
    value: float


class RayMetrics:
    """One thread calls `publish`; it does not block. Outside a Ray process nothing is recorded, and nothing raised."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._last: dict[tuple[str, ...], float] = {}

    def publish(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            metric, labels = self._metric(sample), dict(sample.labels)
            if not _is_total(sample.name):
                metric.set(sample.value, tags=labels)
            elif (more := self._more(sample)) > 0:
                metric.inc(more, tags=labels)

    def _metric(self, sample: Sample) -> Any:
        from ray.util.metrics import Counter, Gauge

        known = self._metrics.get(sample.name)
        if known is None:
            kind = Counter if _is_total(sample.name) else Gauge
            known = self._metrics[sample.name] = kind(sample.name, tag_keys=tuple(sample.labels))
        return known

    def _more(self, sample: Sample) -> float:
        """Ray's counters take what was added since. What counts may have begun again at zero."""
        key = (sample.name, *sample.labels.values())
        last, self._last[key] = self._last.get(key, 0.0), sample.value
        return sample.value - last if sample.value >= last else sample.value


def _is_total(name: str) -> bool:
    return name.endswith("_total")
