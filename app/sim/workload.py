"""What a fleet is asked: requests with arrival times, lengths, and the names of their blocks.

A block's name stands for the whole prompt up to its end, as in Mooncake's trace: equal names, equal prefix. Token ids
are made from names, so that the routing code sees prompts that agree exactly as far as their names do.
"""

import json
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.errors import SettingsError

TRACE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Job:
    """One request. `names` are of its blocks, a last partial one included."""

    at: float
    tokens: int
    output: int
    names: tuple[int, ...]
    session: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of arrival, made anew by each call of `jobs`: a million of them need not be in memory at once."""

    name: str
    block_tokens: int
    jobs: Callable[[], Iterator[Job]]

    def sped_up(self, factor: float) -> "Workload":
        """The same requests, arriving `factor` times as fast."""
        return replace(self, jobs=lambda: (replace(job, at=job.at / factor) for job in self.jobs()))


def listed(name: str, block_tokens: int, jobs: Sequence[Job]) -> Workload:
    return Workload(name, block_tokens, lambda: iter(jobs))


def token_bytes(job: Job, block_tokens: int) -> bytes:
    """The prompt's token ids as packed 32-bit numbers."""
    whole = b"".join([struct.pack("=I", name & 0xFFFFFFFF) * block_tokens for name in job.names])
    return whole[: 4 * job.tokens]


def tokens_of(packed: bytes) -> "array[int]":
    tokens = array("I")
    tokens.frombytes(packed)
    return tokens


def read_trace(path: Path) -> Workload:
    """Mooncake's format: a JSON object a line with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

    Raises SettingsError with the line's number if one is not like that. The trace names no conversations: see
    `_Sessions` for how they are guessed.
    """
    jobs, sessions = [], _Sessions()
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                names = tuple(row["hash_ids"])
                job = Job(row["timestamp"] / 1000, row["input_length"], row["output_length"], names)
                if TRACE_BLOCK_TOKENS * len(names) < job.tokens or job.tokens <= 0:
                    raise ValueError("hash_ids do not cover input_length")
            except (KeyError, TypeError, ValueError) as error:
                raise SettingsError(f"{path}, line {number} is not a request in Mooncake's format: {error}") from error
            jobs.append(replace(job, session=sessions.of(job)))
    jobs.sort(key=lambda job: job.at)
    return listed(path.name, TRACE_BLOCK_TOKENS, jobs)


class _Sessions:
    """A request continues a conversation if it contains at least half of the last prompt that ended in its deepest
    known block; else it begins one."""

    def __init__(self) -> None:
        self._owner: dict[int, tuple[str, int]] = {}
        self._made = 0

    def of(self, job: Job) -> str:
        depth = 0
        while depth < len(job.names) and job.names[depth] in self._owner:
            depth += 1
        session = None
        if depth > 1:
            owner, length = self._owner[job.names[depth - 1]]
            session = owner if 2 * depth >= length else None
        if session is None:
            self._made += 1
            session = f"s{self._made}"
        for name in job.names[min(depth, 1) :]:
            self._owner[name] = (session, len(job.names))
        if job.names:
            self._owner.setdefault(job.names[0], (session, len(job.names)))
        return session


@dataclass(frozen=True, slots=True)
class Totals:
    """What a workload amounts to, and what a cache without end would hit of it."""

    requests: int
    tokens: int
    endless_hit_tokens: int
    last_at: float
    longest: int
    work_s: float

    @property
    def endless_hit_ratio(self) -> float:
        return self.endless_hit_tokens / self.tokens if self.tokens else 0.0


def totals(workload: Workload, work_s: Callable[[int, int], float]) -> Totals:
    """One pass over the jobs. `work_s` is an engine's time for a prompt and an output without a cache."""
    seen: set[int] = set()
    requests = tokens = hit = longest = 0
    work = last = 0.0
    for job in workload.jobs():
        requests, tokens, last = requests + 1, tokens + job.tokens, job.at
        longest = max(longest, job.tokens + job.output)
        work += work_s(job.tokens, job.output)
        depth = 0
        while depth < len(job.names) and job.names[depth] in seen:
            depth += 1
        hit += min(job.tokens, depth * workload.block_tokens)
        seen.update(job.names)
    return Totals(requests, tokens, hit, last, longest, work)
