"""What came of a run."""

from array import array
from dataclasses import dataclass, field


def quantile(values: "list[float]", share: float) -> float:
    """Nearest rank, of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


@dataclass(slots=True)
class Outcome:
    """Sums and one time to first token per request: 8 bytes each, so that a million requests are no burden.

    Of a request that was sent again because its node died, `queued_s` and what follows are only of the last time.
    """

    ttft: "array[float]" = field(default_factory=lambda: array("d"))
    prompt_tokens: int = 0
    output_tokens: int = 0
    l0: int = 0
    l1: int = 0
    l2: int = 0
    queued_s: float = 0.0
    loading_s: float = 0.0
    passed_s: float = 0.0
    """Loaded, and behind what its engine began to compute meanwhile."""
    prefilling_s: float = 0.0
    retries: int = 0
    ended_at: float = 0.0
    busy_s: list[float] = field(default_factory=list)
    l2_read_bytes: int = 0
    l2_written_bytes: int = 0
    l2_dropped_blocks: int = 0
    degraded: int = 0

    @property
    def hit_ratio(self) -> float:
        return (self.l0 + self.l1 + self.l2) / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def imbalance(self) -> float:
        """Engine-busy seconds of the busiest replica over the mean: 1 is even."""
        mean = sum(self.busy_s) / len(self.busy_s) if self.busy_s else 0.0
        return max(self.busy_s) / mean if mean else 1.0

    def summary(self) -> dict[str, float]:
        """Flat figures. Rates are over the time from the first arrival to the last answer."""
        ordered = sorted(self.ttft)
        count, span = len(ordered), self.ended_at or 1.0
        tokens = max(1, self.prompt_tokens)
        return {
            "ttft_mean_s": round(sum(ordered) / max(1, count), 4),
            "ttft_p90_s": round(quantile(ordered, 0.9), 4),
            "hit_ratio": round(self.hit_ratio, 4),
            "imbalance": round(self.imbalance, 3),
            "ttft_p50_s": round(quantile(ordered, 0.5), 4),
            "ttft_p99_s": round(quantile(ordered, 0.99), 4),
            "ttft_max_s": round(ordered[-1] if ordered else 0.0, 4),
            "queued_mean_s": round(self.queued_s / max(1, count), 4),
            "loading_mean_s": round(self.loading_s / max(1, count), 4),
            "passed_mean_s": round(self.passed_s / max(1, count), 4),
            "prefilling_mean_s": round(self.prefilling_s / max(1, count), 4),
            "hit_l0": round(self.l0 / tokens, 4),
            "hit_l1": round(self.l1 / tokens, 4),
            "hit_l2": round(self.l2 / tokens, 4),
            "requests": float(count),
            "requests_per_s": round(count / span, 3),
            "prompt_tokens_per_s": round(self.prompt_tokens / span, 1),
            "output_tokens_per_s": round(self.output_tokens / span, 1),
            "utilisation": round(sum(self.busy_s) / max(1, len(self.busy_s)) / span, 4),
            "l2_read_gb": round(self.l2_read_bytes / 1e9, 2),
            "l2_written_gb": round(self.l2_written_bytes / 1e9, 2),
            "l2_dropped_blocks": float(self.l2_dropped_blocks),
            "retries": float(self.retries),
        }
