"""The counters of this process's routing cores as Ray metrics, which Ray exports to Prometheus.

    tierserve_routing_decisions_total{reason}        how requests found their replica
    tierserve_routing_tokens_total{kind}             prompt, hit_expected, hit_reported
    tierserve_routing_alarms_total{alarm}            the self-check's, see docs/routing.md
    tierserve_routing_failures_total{kind}           policies that raised
    tierserve_routing_state{name}                    everything else that a core says of itself, as it is now

Each has the tags application, deployment and strategy.
"""

from collections.abc import Mapping
from typing import Any

from app.routing.core import RoutingCore

_TAGS = ("application", "deployment", "strategy")
_TOKENS = {"prompt_tokens": "prompt", "hit_tokens_expected": "hit_expected", "hit_tokens_reported": "hit_reported"}

Key = tuple[str, str, str]
"""Metric, its own tag, the tag's value."""


def metric_of(name: str) -> tuple[str, str, str, bool]:
    """Metric, its own tag, the tag's value, and whether it only ever grows."""
    head, _, tail = name.partition(":")
    if head == "reason":
        return "tierserve_routing_decisions_total", "reason", tail, True
    if head == "failed":
        return "tierserve_routing_failures_total", "kind", tail, True
    if name in _TOKENS:
        return "tierserve_routing_tokens_total", "kind", _TOKENS[name], True
    if name.startswith("alarm_"):
        return "tierserve_routing_alarms_total", "alarm", name.removeprefix("alarm_"), True
    return "tierserve_routing_state", "name", name, False


class RouterMetrics:
    """One thread calls `publish`; it does not block. Outside a Ray process nothing is recorded, and nothing raised."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._last: dict[tuple[str, ...], float] = {}

    def publish(self, cores: Mapping[tuple[str, str], RoutingCore]) -> None:
        for (application, deployment), core in cores.items():
            tags = {"application": application, "deployment": deployment, "strategy": core.policy.name}
            for name, value in core.status().items():
                self._record(tags, name, value)

    def _record(self, tags: dict[str, str], name: str, value: float) -> None:
        from ray.util.metrics import Counter, Gauge

        metric, tag, what, grows = metric_of(name)
        known = self._metrics.get(metric)
        if known is None:
            known = self._metrics[metric] = (Counter if grows else Gauge)(metric, tag_keys=(*_TAGS, tag))
        labels = {**tags, tag: what}
        if not grows:
            known.set(value, tags=labels)
            return
        key = (metric, *labels.values())
        # A core that was made anew begins at zero.
        more = value - self._last.get(key, 0.0) if value >= self._last.get(key, 0.0) else value
        self._last[key] = value
        if more > 0:
            known.inc(more, tags=labels)
