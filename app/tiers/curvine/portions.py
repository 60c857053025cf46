"""A long call, portion after portion."""

import threading
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from app.tiers.curvine.portion import MOST

P = TypeVar("P")
Made = TypeVar("Made", covariant=True)


@dataclass(frozen=True, slots=True)
class Share(Generic[P]):
    """One worker's part in a portion: of `chunks`, indices of the call's, if it leads."""

    portion: P
    chunks: range
    leads: bool


class Maker(Protocol[Made]):
    """Makes a portion."""

    def __call__(self, *, helped: bool) -> Made: ...


class Portions(Generic[P]):
    """Cuts a call's chunks into portions of `MOST` with several workers each. Its pieces are numbered portion by
    portion, the leader's first; a portion is made for its first worker and forgotten after its last, so that memory
    does not grow with the call. Any thread."""

    def __init__(self, count: int, workers: int, make: "Maker[P]") -> None:
        """`make` must not block: it is called with a lock held that this call's other workers want."""
        self._count = count
        self._workers = min(workers, count)
        self._make = make
        self._lock = threading.Lock()
        self._open: dict[int, tuple[P, int]] = {}
        self.pieces = -(-count // MOST) * self._workers

    def share(self, piece: int) -> Share[P]:
        """What the worker of that piece has to do. Called once for each."""
        number, worker = divmod(piece, self._workers)
        with self._lock:
            if number not in self._open:
                self._open[number] = self._make(helped=self._workers > 1), 0
            portion, came = self._open.pop(number)
            if came + 1 < self._workers:
                self._open[number] = portion, came + 1
        start = number * MOST
        return Share(portion, range(start, min(start + MOST, self._count)), worker == 0)
