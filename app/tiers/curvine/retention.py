"""What to give up first when the pool is full.

A policy gives every entry a value; the lowest go first. Both policies are here because one has to be compared with
something: `docs/pool.md` has the hit rates of both on a public trace.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

UNKNOWN_DEPTH = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One chunk file as the ledger knows it."""

    family: str
    digest: str
    file_bytes: int
    last: float  # seconds of the last use, by the janitor's clock
    weight: float  # uses so far, each halved for every half-life since
    depth: int  # chunks before it in its prompt

    @property
    def name(self) -> str:
        return f"{self.family}/{self.digest}"


class Worth:
    """Seconds of prefill that a byte of each family saves, as the servers say that use it. One thread."""

    def __init__(self) -> None:
        self.known: dict[str, float] = {}

    def learn(self, said: Mapping[str, float]) -> None:
        """What is not a positive number is not believed."""
        self.known.update({family: value for family, value in said.items() if 0 < value < math.inf})

    def __call__(self, family: str) -> float:
        """A family that nobody has spoken for counts as the average one."""
        value = self.known.get(family)
        if value is None:
            return sum(self.known.values()) / len(self.known) if self.known else 1.0
        return value


class Retention(ABC):
    """Pure: no state, any thread."""

    name: str

    @abstractmethod
    def value(self, entry: Entry, now: float) -> tuple[float, ...]:
        """Compared with other entries' values: the lowest is evicted first."""

    @abstractmethod
    def used(self, entry: Entry, now: float, times: int = 1) -> Entry:
        """The entry after it has been stored again or loaded."""


class Lru(Retention):
    """Least recently used. Of chunks used in one moment the later ones of a prompt go first: a later chunk without its
    predecessors is useless. (Without that rule LRU evicts the beginning first, and with it the whole prompt.)"""

    name = "lru"

    def value(self, entry: Entry, now: float) -> tuple[float, ...]:
        return (entry.last, -entry.depth)

    def used(self, entry: Entry, now: float, times: int = 1) -> Entry:
        return replace(entry, last=now, weight=entry.weight + times)


class Score(Retention):
    """Seconds of prefill that an entry is expected to save per byte it takes.

    Expected uses are counted with a half-life: sum over uses of 2^(-age / half_life), which is frequency and recency
    in one number and needs no history (the CRF of LRFU). A prompt's beginning is used whenever its continuation is, so
    it is worth at least as much by itself; equals are told apart by depth. `seconds_per_byte` weighs models against
    each other: a big model's chunk is slower to prefill, and may be larger.
    """

    name = "score"

    def __init__(self, *, half_life_s: float = 300.0, seconds_per_byte: Callable[[str], float] | None = None) -> None:
        assert half_life_s > 0, half_life_s
        self._half_life_s = half_life_s
        self._seconds_per_byte = seconds_per_byte or (lambda family: 1.0)

    def value(self, entry: Entry, now: float) -> tuple[float, ...]:
        # log2 of the product; subtracting the age instead of multiplying keeps very old entries apart.
        worth = math.log2(max(entry.weight, 1e-300)) + math.log2(max(self._seconds_per_byte(entry.family), 1e-300))
        return (worth - (now - entry.last) / self._half_life_s, -entry.depth)

    def used(self, entry: Entry, now: float, times: int = 1) -> Entry:
        faded = entry.weight * 2 ** (-max(0.0, now - entry.last) / self._half_life_s)
        return replace(entry, last=max(now, entry.last), weight=faded + times)


def policy(name: str, seconds_per_byte: Callable[[str], float] | None = None) -> Retention:
    """Raises KeyError for a name that is none of `lru`, `score`."""
    known: Mapping[str, Callable[[], Retention]] = {
        "lru": Lru, "score": lambda: Score(seconds_per_byte=seconds_per_byte),
    }  # fmt: skip
    return known[name]()
