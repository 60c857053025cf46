"""What the janitor knows of the files: their sizes, uses and place in a prompt."""

import heapq
import os
from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa

from app.tiers.curvine.directory import Found
from app.tiers.curvine.retention import UNKNOWN_DEPTH, Entry, Retention

_SCHEMA = pa.schema(
    [
        ("family", pa.string()),
        ("digest", pa.string()),
        ("file_bytes", pa.int64()),
        ("last", pa.float64()),
        ("weight", pa.float64()),
        ("depth", pa.int32()),
    ]
)


class Ledger:
    """Entries by `family/digest`. One thread; memory only, apart from `save` and `load`."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._entries: dict[str, Entry] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    @property
    def bytes(self) -> int:
        """Of all entries."""
        return self._bytes

    def stored(self, family: str, digest: str, file_bytes: int, depth: int, now: float) -> None:
        """A file was published. Storing counts as one use."""
        entry = self._entries.get(f"{family}/{digest}")
        if entry is None:
            entry = Entry(family, digest, file_bytes, now, 1.0, depth)
        else:
            entry = self._retention.used(entry, now)
        self._set(entry)

    def used(self, name: str, times: int, now: float) -> None:
        """A file was loaded; nothing if it is not known."""
        entry = self._entries.get(name)
        if entry is not None:
            self._set(self._retention.used(entry, now, times))

    def placed(self, name: str, depth: int) -> None:
        """A lookup showed where in its prompt a chunk stands. The smallest depth counts: it never changes for one
        hash."""
        entry = self._entries.get(name)
        if entry is not None and depth < entry.depth:
            self._set(Entry(entry.family, entry.digest, entry.file_bytes, entry.last, entry.weight, depth))

    def gone(self, name: str) -> Entry | None:
        """A file was removed."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._bytes -= entry.file_bytes
        return entry

    def reconcile(self, found: Iterable[Found], now: float) -> list[Entry]:
        """Makes the ledger agree with a scan: what is on disk counts, what is not is forgotten (and returned). A file
        that nobody has told us of counts as used once, when it was written; `now` caps clocks that run ahead."""
        missing = dict(self._entries)
        for file in found:
            name = f"{file.family}/{file.digest}"
            known = missing.pop(name, None)
            if known is None:
                self._set(Entry(file.family, file.digest, file.file_bytes, min(file.mtime, now), 1.0, UNKNOWN_DEPTH))
            elif known.file_bytes != file.file_bytes:
                self._set(Entry(known.family, known.digest, file.file_bytes, known.last, known.weight, known.depth))
        for name in missing:
            self.gone(name)
        return list(missing.values())

    def victims(self, want_bytes: int, now: float, spare: Collection[str] = ()) -> list[Entry]:
        """The least valuable entries that together free `want_bytes`, cheapest first, without those in `spare`.

        O(n) to build the heap and O(log n) a victim: 0.2 s among 100,000 entries, once a watermark is crossed.
        """
        value = self._retention.value
        heap = [(value(entry, now), name) for name, entry in self._entries.items() if name not in spare]
        heapq.heapify(heap)
        chosen: list[Entry] = []
        while heap and want_bytes > 0:
            entry = self._entries[heapq.heappop(heap)[1]]
            chosen.append(entry)
            want_bytes -= entry.file_bytes
        return chosen

    def _set(self, entry: Entry) -> None:
        previous = self._entries.get(entry.name)
        self._bytes += entry.file_bytes - (previous.file_bytes if previous else 0)
        self._entries[entry.name] = entry

    def save(self, path: str) -> None:
        """Writes the ledger beside `path` and renames it there. Raises OSError."""
        rows = [{name: getattr(entry, name) for name in _SCHEMA.names} for entry in self._entries.values()]
        temporary = f"{path}.{os.getpid()}.new"
        with pa.OSFile(temporary, "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))
        os.replace(temporary, path)

    def load(self, path: str) -> None:
        """Adds what an earlier janitor saved; nothing if it is missing or unreadable, for a scan follows anyway."""
        try:
            with pa.OSFile(path) as source:
                rows = pa.ipc.open_file(source).read_all().to_pylist()
            for row in rows:
                self._set(Entry(**row))
        except (OSError, pa.ArrowInvalid, TypeError):
            return

    def check_integrity(self) -> None:
        """Raises AssertionError if the total is not the sum, or an entry sits under another's name."""
        total = sum(entry.file_bytes for entry in self._entries.values())
        assert self._bytes == total, (self._bytes, total)
        for name, entry in self._entries.items():
            assert entry.name == name, (entry.name, name)
            assert entry.file_bytes >= 0, entry
            assert entry.weight > 0, entry
