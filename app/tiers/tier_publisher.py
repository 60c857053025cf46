"""A cache server's end of the tier events: publishes what changes, answers who asks for the whole.

    PUB     one frame a message, every change as it happens, a sign of life a second
    ROUTER  a request `[b"", tier]` is answered with one snapshot message; `[b"", Prefill]` is a replica's, unanswered

PUB drops what a slow follower does not take, and says nothing of it: followers see the gap in the numbers and ask.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import zmq

from app.tier_events import TIERS, Prefill, Tier, TierMessage, decode_prefill, encode_tier
from app.tiers.holdings import Held, Holdings

ALIVE_S = 1.0
_HIGH_WATER = 10_000


class TierPublisher:
    """`stored`, `removed` and `lost` may be called from any thread: they take one lock and never block beyond it, nor
    raise. One daemon thread answers and says that we live.

    Raises:
        zmq.ZMQError: from the constructor, if a port is taken.
    """

    def __init__(
        self, host: str, port: int, ask_port: int, on_prefill: Callable[[Prefill], None] = lambda _: None
    ) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._lock = threading.Lock()
        self._on_prefill = on_prefill
        self._holdings: dict[Tier, Holdings] = {tier: Holdings(tier) for tier in TIERS}
        self._pub: zmq.Socket[bytes] = context.socket(zmq.PUB)
        self._ask: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        for socket in (self._pub, self._ask):
            socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
            socket.setsockopt(zmq.LINGER, 0)
        self._pub.bind(f"tcp://{host}:{port}")
        self._ask.bind(f"tcp://{host}:{ask_port}")
        self.dropped = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tierserve-tiers", daemon=True)
        self._thread.start()

    def stored(self, tier: Tier, keys: Iterable[Held]) -> None:
        self._change(lambda: self._holdings[tier].store(keys))

    def removed(self, tier: Tier, keys: Iterable[Held]) -> None:
        self._change(lambda: self._holdings[tier].remove(keys))

    def lost(self, tier: Tier) -> None:
        """Notices of the tier were lost: followers forget what they believe of it."""
        self._change(lambda: self._holdings[tier].forget())

    def status(self) -> dict[str, int]:
        with self._lock:
            return {f"{tier}_chunks": held.chunks for tier, held in self._holdings.items()} | {
                "tier_messages_dropped": self.dropped
            }

    def check_integrity(self) -> None:
        with self._lock:
            for held in self._holdings.values():
                held.check_integrity()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(5.0)
        with self._lock:
            self._pub.close()

    def _change(self, change: Callable[[], TierMessage | None]) -> None:
        # Numbered and sent under one lock, so that numbers leave in order.
        with self._lock:
            message = change()
            if message is not None:
                self._send(message)

    def _send(self, message: TierMessage) -> None:
        try:
            self._pub.send(encode_tier(message), zmq.DONTWAIT)
        except zmq.ZMQError:
            self.dropped += 1

    def _run(self) -> None:
        next_alive = 0.0
        while not self._stopping.is_set():
            now = time.monotonic()
            if now >= next_alive:
                next_alive = now + ALIVE_S
                with self._lock:
                    for held in self._holdings.values():
                        self._send(held.alive())
            if self._ask.poll(100):
                self._answer()
        self._ask.close()

    def _answer(self) -> None:
        with suppress(zmq.ZMQError):
            asker, *_, asked = self._ask.recv_multipart(zmq.DONTWAIT)
            held = next((one for one in TIERS if one.encode() == asked), None)
            if held is None:
                prefill = decode_prefill(asked)
                if prefill is not None:
                    self._on_prefill(prefill)
                return
            with self._lock:
                message = self._holdings[held].snapshot()
            self._ask.send_multipart([asker, b"", encode_tier(message)], zmq.DONTWAIT)
