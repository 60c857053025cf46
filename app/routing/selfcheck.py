"""Does the router see what the engines do? Compares its token counts and expected hits with what responses report.

The failures it is there for are silent: a router that hashes other tokens than the engine (another chat template, an
endpoint it does not tokenise) finds nothing for ever and still balances load well enough that nobody looks.
"""

import logging
from collections import deque
from typing import Literal

import msgspec

from app.routing.policy import CacheReport

logger = logging.getLogger("tierserve.routing")

Alarm = Literal["tokens", "missed", "unseen"]
_MEANING: dict[Alarm, str] = {
    "tokens": "the router counts other tokens than the engine: its tokenizer or chat template differs",
    "missed": "expected hits do not happen: events are lost, or salts, adapters or blocks are named differently",
    "unseen": "the engines hit and the router expected nothing: it does not see what they hold",
}


class _Seen(msgspec.Struct, frozen=True):
    tokens_differ: bool
    expected: int
    reported: int


class SelfCheck:
    """Judges the last `window` reports. Not thread safe; nothing blocks or raises. An alarm is raised on its rising
    edge only.
    """

    def __init__(self, window: int = 64) -> None:
        self._window: deque[_Seen] = deque()
        self._size = window
        # Of what is in the window: a sum over it at each answer would be a tenth of what routing costs.
        self._differ = self._expected = self._reported = 0
        self.alarms: dict[Alarm, int] = {"tokens": 0, "missed": 0, "unseen": 0}
        self.active: set[Alarm] = set()

    def observe(self, counted: int | None, expected_hit: int, report: CacheReport) -> set[Alarm]:
        """One response. `counted` is the router's own token count, if it tokenised. Returns the alarms that are on."""
        differ = counted is not None and counted != report.prompt_tokens
        self._window.append(_Seen(differ, expected_hit, report.hit))
        self._add(self._window[-1], 1)
        if len(self._window) > self._size:
            self._add(self._window.popleft(), -1)
        if len(self._window) < self._size // 2:
            return self.active
        now = self._judge()
        for alarm in sorted(now - self.active):
            self.alarms[alarm] += 1
            logger.error("routing self-check: %s (over the last %d answers)", _MEANING[alarm], len(self._window))
        self.active = now
        return now

    def _add(self, seen: _Seen, sign: int) -> None:
        self._differ += sign * seen.tokens_differ
        self._expected += sign * seen.expected
        self._reported += sign * seen.reported

    def _judge(self) -> set[Alarm]:
        seen, expected, reported = self._window, self._expected, self._reported
        alarms: set[Alarm] = set()
        if 20 * self._differ > len(seen):
            alarms.add("tokens")
        if expected >= 64 * len(seen) and reported < 0.2 * expected:
            alarms.add("missed")
        if reported >= 64 * len(seen) and expected < 0.2 * reported:
            alarms.add("unseen")
        return alarms

    def status(self) -> dict[str, float]:
        return {f"alarm_{name}": float(count) for name, count in self.alarms.items()} | {
            "alarms_on": float(len(self.active))
        }
