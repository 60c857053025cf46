"""What one server does with the pool, collected for the janitor."""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.cost import Prior
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.retention import UNKNOWN_DEPTH

_REMEMBERED_DEPTHS = 65_536
_MOST_EVENTS = 65_536
_MOST_WAITING = 4096


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
    worth: dict[str, float] = field(default_factory=dict)
    """Family -> seconds of prefill that a byte of it saves, for the families of `stored`."""

    @property
    def empty(self) -> bool:
        return not (self.stored or self.used or self.placed or self.dropped or self.held)


def name_of(chunk: ChunkId) -> str:
    return f"{chunk.family.directory}/{chunk.digest}"


class Usage:
    """Any thread; never blocks; bounded: what does not fit is forgotten, and a scan finds it."""

    def __init__(self, prefill_tokens_per_s: float = 0.0) -> None:
        """The speed of the model that this server serves; 0 if it is not known."""
        self._rate = prefill_tokens_per_s or Prior().prefill_rate
        self._lock = threading.Lock()
        self._worth: dict[str, float] = {}
        self._depths: OrderedDict[str, int] = OrderedDict()
        self._stored: list[Stored] = []
        self._used: dict[str, int] = {}
        self._placed: dict[str, int] = {}
        self._dropped: list[str] = []
        self._total = 0
        # Requests wait for lookups and loads, and nobody for this: the lists are worked off when the next report is
        # due. Oldest first; (chunks, whether they were loaded rather than looked up).
        self._waiting: deque[tuple[Sequence[ChunkId], bool]] = deque(maxlen=_MOST_WAITING)

    def looked_up(self, chunks: Sequence[ChunkId]) -> None:
        """A request's chunks, in the order of its prompt, several ranks or groups one after another: a chunk's position
        among its own kind is its depth. Found or not, because what is missing now will be stored soon."""
        self._waiting.append((chunks, False))

    def loaded(self, chunks: Sequence[ChunkId]) -> None:
        """Files were read. The sequence must not change any more."""
        self._waiting.append((chunks, True))

    def stored(self, chunks: Sequence[ChunkId], sizes: Sequence[int]) -> None:
        """Files were published, of so many bytes. Their places are known if their request was looked up before, as
        every request is."""
        with self._lock:
            self._catch_up()
            self._total += sum(sizes)
            for chunk, file_bytes in zip(chunks, sizes, strict=True):
                if len(self._stored) == _MOST_EVENTS:
                    break
                name = name_of(chunk)
                family = chunk.family
                self._worth[family.directory] = family.chunk_tokens / self._rate / file_bytes
                self._stored.append(Stored(name, file_bytes, self._depths.get(name, UNKNOWN_DEPTH)))

    def _catch_up(self) -> None:
        """Lock held."""
        while self._waiting:
            chunks, loaded = self._waiting.popleft()
            if loaded:
                self._count(chunks)
            else:
                self._place(chunks)

    def _place(self, chunks: Sequence[ChunkId]) -> None:
        seen: dict[tuple[str, int, int], int] = {}
        for chunk in chunks:
            row = (chunk.family.directory, chunk.kv_rank, chunk.group)
            depth = seen.get(row, 0)
            seen[row] = depth + 1
            self._depths[name_of(chunk)] = depth
        while len(self._depths) > _REMEMBERED_DEPTHS:
            self._depths.popitem(last=False)

    def _count(self, chunks: Sequence[ChunkId]) -> None:
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
            self._catch_up()
            report = Report(
                tuple(self._stored),
                self._used,
                self._placed,
                tuple(self._dropped),
                tuple(held),
                self._total,
                largest,
                self._worth,
            )
            self._stored, self._used, self._placed, self._dropped, self._worth = [], {}, {}, [], {}
        return report
