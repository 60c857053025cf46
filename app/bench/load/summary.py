"""What records add up to, under the names that are published: TTFT, ITL, E2E, goodput. Pure."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from app.bench.load.record import RequestRecord

TIERS = ("l0", "l1", "l2", "computed")


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over requests, in seconds."""

    count: int
    mean: float
    median: float
    p90: float
    p99: float
    min: float
    max: float
    stdev: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """None of nothing: there is no median of no requests."""
        found = sorted(values)
        if not found:
            return None
        return cls(
            count=len(found),
            mean=statistics.fmean(found),
            median=percentile(found, 50),
            p90=percentile(found, 90),
            p99=percentile(found, 99),
            min=found[0],
            max=found[-1],
            stdev=statistics.stdev(found) if len(found) > 1 else 0.0,
        )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in ascending order, between neighbours linearly (as NumPy's default)."""
    at = (len(ordered) - 1) * percent / 100
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


@dataclass(frozen=True, slots=True)
class Summary:
    """`goodput_rps` is answered requests a second whose TTFT was within `ttft_target_s`; without a target, None.

    `tokens` are of prompts, by tier, over the requests of which the endpoint told them; `hit_ratio` is what the
    endpoint says was cached of all their prompts' tokens.
    """

    requests: int
    failed: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    ttft_s: Spread | None
    itl_s: Spread | None
    e2e_s: Spread | None
    late_s: Spread | None
    ttft_target_s: float | None
    goodput_rps: float | None
    goodput_share: float | None
    prompt_tokens: int
    output_tokens: int
    tokens: dict[str, int]
    hit_ratio: float | None
    by_replica: dict[str, int]

    def row(self) -> dict[str, Any]:
        """What tables of several loads or systems say of each: flat, and None where nothing was measured."""
        ttft, itl, e2e, late = self.ttft_s, self.itl_s, self.e2e_s, self.late_s
        return {
            "requests": self.requests,
            "failed": self.failed,
            "ttft_mean_s": ttft.mean if ttft else None,
            "ttft_median_s": ttft.median if ttft else None,
            "ttft_p90_s": ttft.p90 if ttft else None,
            "itl_median_s": itl.median if itl else None,
            "e2e_median_s": e2e.median if e2e else None,
            "late_p99_s": late.p99 if late else None,
            "requests_per_s": self.requests_per_s,
            "hit_ratio": self.hit_ratio,
        }


def summarize(records: Sequence[RequestRecord], ttft_target_s: float | None = None) -> Summary:
    """Latencies are of the requests that were answered; failed ones count, as missed, in goodput's share."""
    good = [record for record in records if record.ok]
    duration = _duration(records)
    within = [r for r in good if ttft_target_s is not None and r.ttft_s is not None and r.ttft_s <= ttft_target_s]
    told = [record for record in good if record.cached_tokens is not None]
    told_tokens = sum(record.prompt_tokens for record in told)
    return Summary(
        requests=len(records),
        failed=len(records) - len(good),
        duration_s=duration,
        requests_per_s=_per(len(good), duration),
        output_tokens_per_s=_per(sum(record.output_tokens for record in good), duration),
        ttft_s=Spread.of(record.ttft_s for record in good if record.ttft_s is not None),
        itl_s=Spread.of(gap for record in good for gap in record.itl_s),
        e2e_s=Spread.of(record.e2e_s for record in good),
        late_s=Spread.of(record.late_s for record in records),
        ttft_target_s=ttft_target_s,
        goodput_rps=None if ttft_target_s is None else _per(len(within), duration),
        goodput_share=None if ttft_target_s is None else _per(len(within), len(records)),
        prompt_tokens=sum(record.prompt_tokens for record in good),
        output_tokens=sum(record.output_tokens for record in good),
        tokens={tier: sum(record.tokens(tier) or 0 for record in good) for tier in TIERS},
        hit_ratio=_per(sum(record.cached_tokens or 0 for record in told), told_tokens) if told_tokens else None,
        by_replica=_counts(record.replica for record in good if record.replica),
    )


def by(
    records: Iterable[RequestRecord], key: Callable[[RequestRecord], str], ttft_target_s: float | None = None
) -> dict[str, Summary]:
    """A summary for each value of `key`, in the order in which they appear."""
    groups: dict[str, list[RequestRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return {name: summarize(group, ttft_target_s) for name, group in groups.items()}


def _duration(records: Sequence[RequestRecord]) -> float:
    if not records:
        return 0.0
    return max(r.started_s + r.e2e_s for r in records) - min(r.scheduled_s for r in records)


def _per(amount: float, of: float) -> float:
    return amount / of if of else 0.0


def _counts(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts
