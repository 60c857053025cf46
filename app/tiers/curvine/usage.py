"""What one server does with the pool, collected for the janitor."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.retention import UNKNOWN_DEPTH

_REMEMBERED_DEPTHS = 65_536
_MOST_EVENTS = 65_536


@dataclass(frozen=True, slots=True)
class Stored:
    """A file that was published."""

    name: str
    file_bytes: int
    depth: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything since the last report. Names are `family/digest`."""

    stored: tuple[Stored, ...] = ()
    used: dict[str, int] = field(default_factory=dict)
    placed: dict[str, int] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    stored_total: int = 0
    """Bytes of every file ever stored by this writer: a lost report must not leave its credit out for ever."""
    largest: int = 0
    """Bytes of the largest file that it wanted to store."""

    @property
    def empty(self) -> bool:
        return not (self.stored or self.used or self.placed or self.dropped or self.held)


def name_of(chunk: ChunkId) -> str:
    return f"{chunk.family.directory}/{chunk.digest}"


class Usage:
    """Any thread; never blocks; bounded: what does not fit is forgotten, and a scan finds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depths: OrderedDict[str, int] = OrderedDict()
        self._stored: list[Stored] = []
        self._used: dict[str, int] = {}
        self._placed: dict[str, int] = {}
        self._dropped: list[str] = []
        self._total = 0

    def looked_up(self, chunks: Sequence[ChunkId]) -> None:
        """A request's chunks, in the order of its prompt, several ranks or groups one after another: a chunk's position
        among its own kind is its depth. Found or not, because what is missing now will be stored soon."""
        seen: dict[tuple[str, int, int], int] = {}
        with self._lock:
            for chunk in chunks:
                row = (chunk.family.directory, chunk.kv_rank, chunk.group)
                depth = seen.get(row, 0)
                seen[row] = depth + 1
                self._depths[name_of(chunk)] = depth
            while len(self._depths) > _REMEMBERED_DEPTHS:
                self._depths.popitem(last=False)

    def stored(self, chunk: ChunkId, file_bytes: int) -> None:
        """A file was published. Its place is known if its request was looked up before, as every request is."""
        name = name_of(chunk)
        with self._lock:
            self._total += file_bytes
            if len(self._stored) < _MOST_EVENTS:
                self._stored.append(Stored(name, file_bytes, self._depths.get(name, UNKNOWN_DEPTH)))

    def loaded(self, chunks: Iterable[ChunkId]) -> None:
        with self._lock:
            for chunk in chunks:
                name = name_of(chunk)
                if name in self._used or len(self._used) < _MOST_EVENTS:
                    self._used[name] = self._used.get(name, 0) + 1
                    if name in self._depths:
                        self._placed[name] = self._depths[name]

    def dropped(self, name: str) -> None:
        """A file was removed, by whatever reason but eviction."""
        with self._lock:
            if len(self._dropped) < _MOST_EVENTS:
                self._dropped.append(name)

    def drain(self, held: Iterable[str] = (), largest: int = 0) -> Report:
        """Takes everything collected, with the names that must not be evicted now."""
        with self._lock:
            report = Report(
                tuple(self._stored), self._used, self._placed, tuple(self._dropped), tuple(held), self._total, largest
            )
            self._stored, self._used, self._placed, self._dropped = [], {}, {}, []
        return report
