"""Records for tests of what is made of them."""

from dataclasses import replace

from app.bench.load.record import RequestRecord

_PLAIN = RequestRecord(
    index=0,
    phase="cold",
    conversation="c",
    turn=0,
    scheduled_s=0.0,
    started_s=0.0,
    ttft_s=1.0,
    itl_s=(0.1, 0.2),
    e2e_s=1.3,
    planned_tokens=100,
    prompt_tokens=100,
    output_tokens=3,
    cached_tokens=None,
    l0_tokens=None,
    l1_tokens=None,
    l2_tokens=None,
    computed_tokens=None,
    replica="",
    status=200,
    error="",
    text="a b c",
)


def record(**fields: object) -> RequestRecord:
    return replace(_PLAIN, **fields)  # type: ignore[arg-type]


def hit(l0: int = 0, l1: int = 0, l2: int = 0, total: int = 100, **fields: object) -> RequestRecord:
    tiers = {"l0_tokens": l0, "l1_tokens": l1, "l2_tokens": l2, "computed_tokens": total - l0 - l1 - l2}
    return record(cached_tokens=l0 + l1 + l2, prompt_tokens=total, **tiers, **fields)


def failed(**fields: object) -> RequestRecord:
    nothing = {"ttft_s": None, "itl_s": (), "prompt_tokens": 0, "output_tokens": 0, "status": 503, "text": ""}
    return record(error="no", **{**nothing, **fields})
