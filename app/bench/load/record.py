"""One request as it was measured. Pure values; every figure of a benchmark is computed from these and nothing else."""

from dataclasses import dataclass

from app.cache_report import CacheReport


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Times are seconds. `scheduled_s` and `started_s` count from the start of the run, the others from `started_s`.

    A request of an open loop that starts late says so by the difference of the first two: nothing is hidden by a client
    that is busy. Tokens by tier are the endpoint's own; None where it does not tell them. `cached_tokens` is OpenAI's
    field, which other servers send as well.
    """

    index: int
    phase: str
    conversation: str
    turn: int
    scheduled_s: float
    started_s: float
    ttft_s: float | None
    itl_s: tuple[float, ...]
    e2e_s: float
    planned_tokens: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    l0_tokens: int | None
    l1_tokens: int | None
    l2_tokens: int | None
    computed_tokens: int | None
    replica: str
    status: int
    error: str
    text: str

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def late_s(self) -> float:
        return self.started_s - self.scheduled_s

    def tokens(self, tier: str) -> int | None:
        """`tier` is l0, l1, l2 or computed."""
        value: int | None = getattr(self, f"{tier}_tokens")
        return value


def tier_fields(report: CacheReport | None) -> dict[str, int | None]:
    if report is None:
        return {"l0_tokens": None, "l1_tokens": None, "l2_tokens": None, "computed_tokens": None}
    return {
        "l0_tokens": report.l0,
        "l1_tokens": report.l1,
        "l2_tokens": report.l2,
        "computed_tokens": report.computed,
    }
