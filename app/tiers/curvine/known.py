"""Which key a file of the pool belongs to: what turns an eviction's file name into news for LMCache's listeners."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K")

_MOST = 131_072


class KnownKeys(Generic[K]):
    """Bounded; the longest known are forgotten first, and their eviction then goes unannounced. Any thread."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._keys: OrderedDict[str, tuple[K, int]] = OrderedDict()

    def add(self, name: str, key: K, file_bytes: int) -> bool:
        """Whether it is new."""
        return self.add_many([name], [key], [file_bytes])[0]

    def add_many(self, names: Iterable[str], keys: Sequence[K], sizes: Sequence[int]) -> list[bool]:
        """Which of them are new."""
        new = []
        with self._lock:
            for name, key, file_bytes in zip(names, keys, sizes, strict=True):
                new.append(name not in self._keys)
                self._keys[name] = (key, file_bytes)
            while len(self._keys) > self._most:
                self._keys.popitem(last=False)
        return new

    def pop(self, name: str) -> tuple[K, int] | None:
        """The key and the size of its file, if it is known; then no more."""
        with self._lock:
            return self._keys.pop(name, None)

    def keys(self) -> list[K]:
        with self._lock:
            return [key for key, _ in self._keys.values()]

    @property
    def full(self) -> bool:
        with self._lock:
            return len(self._keys) >= self._most
