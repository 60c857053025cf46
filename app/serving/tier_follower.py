"""Follows one tier of one cache server: brings its messages into order, and says when to ask for the whole. Pure.

unknown --snapshot--> following --gap, or another life--> unknown (asking, keeping what comes meanwhile)
following --nothing heard for GONE_S--> gone --anything heard--> unknown (asking)
"""

import math
from collections import deque

from app.tier_events import TierMessage

GONE_S = 5.0
"""A server says every second that it lives. After this long it is taken for gone: what it held cannot be loaded now."""
ASK_AGAIN_S = 5.0
_KEPT = 10_000


class TierFollower:
    """Not thread safe; nothing blocks or raises. `now` is monotonic seconds."""

    def __init__(self) -> None:
        self._incarnation: str | None = None
        self._next = 0
        self._kept: deque[TierMessage] = deque(maxlen=_KEPT)
        self._asked = -math.inf
        self._heard = -math.inf
        self.gaps = 0

    @property
    def following(self) -> bool:
        return self._incarnation is not None

    def hear(self, message: TierMessage, now: float) -> list[TierMessage]:
        """A published message. Returns what to apply, in order."""
        self._heard = now
        if not self.following:
            self._kept.append(message)
            return []
        if message.incarnation != self._incarnation:
            return self._lose(message)
        if message.snapshot:
            self._next = message.seq + 1
            return [message]
        if not message.events:
            return [] if message.seq < self._next else self._lose(message)
        if message.seq > self._next:
            self.gaps += 1
            return self._lose(message)
        if message.seq < self._next:
            return []
        self._next += 1
        return [message]

    def answer(self, snapshot: TierMessage, now: float) -> list[TierMessage]:
        """The whole that was asked for. Returns it, and what was kept meanwhile and goes on from there."""
        self._heard = now
        self._incarnation, self._next = snapshot.incarnation, snapshot.seq + 1
        kept, self._kept = self._kept, deque(maxlen=_KEPT)
        ready = [snapshot]
        # What another life said is left out: if it was a later one, its next sign of life will show that.
        for message in (one for one in kept if one.incarnation == snapshot.incarnation):
            ready += self.hear(message, now) if self.following else self._keep(message)
        return ready

    def wants_to_ask(self, now: float) -> bool:
        """Whether to ask for the whole now. Counts as asked."""
        if self.following or now - self._asked < ASK_AGAIN_S:
            return False
        self._asked = now
        return True

    def gone(self, now: float) -> bool:
        """Whether the server has just been found gone: once, on the edge."""
        if not self.following or now - self._heard < GONE_S:
            return False
        self._incarnation = None
        return True

    def check_integrity(self) -> None:
        assert not self.following or not self._kept, f"{len(self._kept)} messages kept while following"

    def _lose(self, message: TierMessage) -> list[TierMessage]:
        self._incarnation = None
        self._asked = -math.inf
        return self._keep(message)

    def _keep(self, message: TierMessage) -> list[TierMessage]:
        self._kept.append(message)
        return []
