"""Which chunks loaded from L2 stay in L1: LMCache's own policy drops every one after a single use.

Nearly everything should. A chunk that is loaded has been used twice already, once by whoever stored it; on the Mooncake
trace over four nodes, keeping all of it saves 9 to 34 % of the loads, keeping only what is loaded a second time 9 to
22 % (`tierserve bench retention`). The exception is a load so large that it would push everything else out of L1: of
that the beginning stays, and what has been loaded here before.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence

_REMEMBERED = 262_144


class Retainer:
    """Remembers what was loaded, bounded. Any thread; never blocks; never raises."""

    def __init__(self, *, flood: int = 2048, head: int = 64, remembered: int = _REMEMBERED) -> None:
        """`flood`: chunks of one load beyond which it is a flood. `head`: chunks of a flood that stay."""
        self._flood = flood
        self._head = head
        self._most = remembered
        self._lock = threading.Lock()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()

    def choose(self, keys: Sequence[Hashable]) -> list[bool]:
        """For each key, in the order of the prompt, whether to keep it. Takes note of all of them."""
        flood = len(keys) > self._flood
        kept = []
        with self._lock:
            for position, key in enumerate(keys):
                kept.append(not flood or position < self._head or key in self._seen)
                self._seen[key] = None
                self._seen.move_to_end(key)
            while len(self._seen) > self._most:
                self._seen.popitem(last=False)
        return kept
