"""How a run's requests were spread over replicas. Pure."""

from collections import Counter
from collections.abc import Sequence

from app.bench.load.record import RequestRecord

UNFAIR = 1.5
"""Times its fair share of what is in flight: more is too much for one while another has nothing."""


def largest_share(records: Sequence[RequestRecord], replicas: int) -> float:
    """The busiest replica's requests over its fair share of all."""
    served = Counter(record.replica for record in records if record.ok)
    return max(served.values(), default=0) * replicas / max(1, served.total())


def unfair_time(records: Sequence[RequestRecord], replicas: int) -> float:
    """The part of the run, from 0 to 1, in which a replica had nothing to do while another had at least two requests,
    and more than `UNFAIR` times its fair share of those in flight."""
    changes = sorted(
        change
        for record in records
        if record.ok
        for change in ((record.started_s, 1, record.replica), (record.started_s + record.e2e_s, -1, record.replica))
    )
    if not changes:
        return 0.0
    flying: Counter[str] = Counter()
    unfair, since = 0.0, changes[0][0]
    for at, step, replica in changes:
        if _is_unfair(flying, replicas):
            unfair += at - since
        flying[replica] += step
        since = at
    return unfair / max(since - changes[0][0], 1e-9)


def _is_unfair(flying: Counter[str], replicas: int) -> bool:
    most = max(flying.values(), default=0)
    idle = sum(count > 0 for count in flying.values()) < replicas
    return idle and most >= 2 and most > UNFAIR * flying.total() / replicas
