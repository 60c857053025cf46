"""What a routing core counts, as metrics.

    tierserve_routing_decisions_total{reason}        how requests found their replica
    tierserve_routing_tokens_total{kind}             prompt, hit_expected, hit_reported
    tierserve_routing_alarms_total{alarm}            the self-check's, see docs/routing.md
    tierserve_routing_failures_total{kind}           policies that raised
    tierserve_routing_state{name}                    everything else that a core says of itself, as it is now

Each has the labels application, deployment and strategy.
"""

from collections.abc import Iterator

from app.ray_metrics import Sample
from app.routing.core import RoutingCore

_TOKENS = {"prompt_tokens": "prompt", "hit_tokens_expected": "hit_expected", "hit_tokens_reported": "hit_reported"}


def samples(application: str, deployment: str, core: RoutingCore) -> Iterator[Sample]:
    labels = {"application": application, "deployment": deployment, "strategy": core.policy.name}
    for name, value in core.status().items():
        metric, label, what = _metric_of(name)
        yield Sample(f"tierserve_routing_{metric}", {**labels, label: what}, value)


def _metric_of(name: str) -> tuple[str, str, str]:
    """Metric, its own label, the label's value."""
    head, _, tail = name.partition(":")
    if head == "reason":
        return "decisions_total", "reason", tail
    if head == "failed":
        return "failures_total", "kind", tail
    if name in _TOKENS:
        return "tokens_total", "kind", _TOKENS[name]
    if name.startswith("alarm_"):
        return "alarms_total", "alarm", name.removeprefix("alarm_")
    return "state", "name", name
