"""Numbered messages from one source, put back in order: gaps are asked for again, restarts are noticed, losses are
admitted.

States of a stream:

    empty --0--> following --next--> following
    empty --n>0--> catching up (asks for everything, keeps what comes meanwhile)
    following --later than next--> catching up (asks from the last message on, to see that it is still the same source)
    catching up --missing ones came--> following
    catching up --replay over, still missing--> clear, incomplete, following from the oldest kept
    any --live number that went back, or another message under a known number--> restarted: clear, then as from empty

A source that restarts, loses the beginning of its new life on the way and is next heard at exactly the number that was
expected cannot be told from one that went on: where that can happen, its name must change with its life (a Serve
replica's does). Incomplete means that the source may hold more than is known here, never less: nothing stale
survives a loss.
"""

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

_KEPT = 20_000
"""Messages kept while catching up; vLLM keeps 10,000 for replay."""


class Step(msgspec.Struct, Generic[T]):
    """What to do now, in this order: forget everything of this source if `clear`, apply, ask for a replay."""

    apply: list[T]
    clear: bool = False
    replay_from: int | None = None


class Stream(Generic[T]):
    """Not thread safe; nothing blocks or raises. It only orders: fetching a replay is the caller's."""

    def __init__(self) -> None:
        self._next: int | None = None
        self._last_stamp = 0.0
        self._unproven = False
        self._kept: dict[int, tuple[float, T]] = {}
        self.catching_up = False
        self.incomplete = False
        self.restarts = 0
        self.losses = 0

    @classmethod
    def starting_at(cls, seq: int) -> "Stream[T]":
        """A stream whose next message is `seq`: for a source whose whole state is known as of then."""
        stream = cls()
        stream._next = seq
        return stream

    @property
    def started(self) -> bool:
        """Whether anything of this source has been applied, so that not knowing a block means something."""
        return self._next is not None

    def offer(self, seq: int, stamp: float, message: T, *, replayed: bool = False) -> Step[T]:
        """One message, live or from a replay. `stamp` tells two messages of the same number apart (the source's
        clock).
        """
        known = self._next
        if known is not None and seq < known:
            if not replayed or (seq == known - 1 and stamp != self._last_stamp):
                return self._restart(seq, stamp, message)
            if seq == known - 1 and self._unproven:
                self._unproven = False
                return self._advance_kept(known)
            return Step([])
        if seq == (0 if known is None else known) and not self._unproven:
            return self._advance(seq, stamp, message)
        self._kept[seq] = (stamp, message)
        if len(self._kept) > _KEPT:
            return self.replay_ended()
        if self.catching_up:
            return Step([])
        self.catching_up = True
        # What fills the gap may be another life's: only the message we know already, come again, proves that it is not.
        self._unproven = known is not None and known > 0
        return Step([], replay_from=0 if known is None else max(0, known - 1))

    def replay_ended(self) -> Step[T]:
        """The source has sent what it had, or did not answer. What is still missing is lost."""
        self.catching_up = self._unproven = False
        if not self._kept:
            return Step([])
        self.losses += 1
        self.incomplete = True
        first = min(self._kept)
        step = self._advance(first, *self._kept.pop(first))
        step.clear = True
        return step

    def _advance(self, seq: int, stamp: float, message: T) -> Step[T]:
        ready = [message]
        self._kept.pop(seq, None)
        while (following := self._kept.pop(seq + 1, None)) is not None:
            seq += 1
            stamp = following[0]
            ready.append(following[1])
        self._next, self._last_stamp = seq + 1, stamp
        # Kept ones further on mean that there is another hole, and the replay under way is to fill it too.
        self.catching_up = self.catching_up and bool(self._kept)
        return Step(ready)

    def _advance_kept(self, seq: int) -> Step[T]:
        found = self._kept.pop(seq, None)
        return Step([]) if found is None else self._advance(seq, *found)

    def _restart(self, seq: int, stamp: float, message: T) -> Step[T]:
        self.restarts += 1
        self._next, self.catching_up, self.incomplete, self._unproven = None, False, False, False
        self._kept.clear()
        step = self.offer(seq, stamp, message)
        step.clear = True
        return step

    def check_integrity(self) -> None:
        lowest = min(self._kept, default=None)
        if lowest is not None and self._next is not None:
            assert lowest > self._next or (self._unproven and lowest == self._next), (
                "a message that could be applied is kept"
            )
        assert len(self._kept) <= _KEPT + 1
