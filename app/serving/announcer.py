"""A replica's voice: publishes its engine's KV events and its requests' first tokens to the routers (announcement.py).

The engine publishes to a Unix socket and not to routers themselves, because vLLM binds its publisher to every address
of the machine or to none, and events carry the tokens of prompts: here the address is the node's own. It also means
ports that are bound when they are chosen, and numbers that begin at a known 0.
"""

import logging
import os
import tempfile
import threading
import time
from collections import deque

import msgspec
import zmq

from app.serving.announcement import (
    END,
    FIRST,
    KV,
    FirstToken,
    decode_first_token,
    encode_first_token,
    number_bytes,
    number_of,
)
from app.tier_events import Prefill, encode_prefill

logger = logging.getLogger(__name__)

KEPT = 10_000
"""Batches kept for replay, as many as vLLM itself keeps."""
_HIGH_WATER = 10_000
_TELLING = 64
"""Computed tokens from which on a prompt's time says something of the speed of computing."""
_CLEARED = msgspec.msgpack.encode([0.0, [{"type": "AllBlocksCleared"}]])
_NOTHING = msgspec.msgpack.encode([0.0, []])


class Announcer:
    """`first_token` may be called from any one thread; it never blocks and never raises. One daemon thread does the
    rest. PUB drops what a router does not take: it sees the gap and asks.

    Raises:
        zmq.ZMQError: from the constructor, if nothing can be bound on `host`.
    """

    def __init__(self, host: str, *, kv_events: bool, cache_url: str = "") -> None:
        """`cache_url`: where the node's cache server is told what computing takes; empty without one."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._pub = _bound(context, zmq.PUB, host)
        self._replay = _bound(context, zmq.ROUTER, host)
        self.events_url = _url(self._pub)
        self.replay_url = _url(self._replay) if kv_events else ""
        # Named after its process: `tierserve serve` sweeps what was left by one that was killed.
        self._directory = tempfile.TemporaryDirectory(prefix=f"tierserve-{os.getpid()}-kv-") if kv_events else None
        self.engine_url = f"ipc://{self._directory.name}/events" if self._directory else ""
        self._engine: zmq.Socket[bytes] = context.socket(zmq.SUB)
        self._engine.setsockopt(zmq.RCVHWM, 0)  # a burst of prefills must not be dropped between two of our steps
        self._engine.setsockopt(zmq.LINGER, 0)
        self._engine.setsockopt(zmq.SUBSCRIBE, b"")
        if self.engine_url:
            # Before the engine binds: its first event finds us listening.
            self._engine.connect(self.engine_url)
        self._cache: zmq.Socket[bytes] | None = context.socket(zmq.DEALER) if cache_url else None
        if self._cache is not None:
            self._cache.setsockopt(zmq.SNDHWM, 100)  # a server that is gone misses what it would not believe later
            self._cache.setsockopt(zmq.LINGER, 0)
            self._cache.connect(cache_url)
        inbox = f"inproc://announcer-{id(self)}"
        self._inbox: zmq.Socket[bytes] = context.socket(zmq.PULL)
        self._inbox.bind(inbox)
        self._outbox: zmq.Socket[bytes] = context.socket(zmq.PUSH)
        self._outbox.setsockopt(zmq.SNDHWM, _HIGH_WATER)
        self._outbox.setsockopt(zmq.LINGER, 0)
        self._outbox.connect(inbox)
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._next = 0
        self._engine_next = 0
        self.dropped = 0
        self._keep(_NOTHING)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tierserve-announcer", daemon=True)
        self._thread.start()

    def engine_arguments(self) -> dict[str, object]:
        """vLLM's `kv_events_config` for the engine of this replica; empty if its events are off."""
        if not self.engine_url:
            return {}
        return {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": self.engine_url}

    def first_token(self, message: FirstToken) -> None:
        try:
            self._outbox.send(encode_first_token(message), zmq.DONTWAIT)
        except zmq.ZMQError:
            self.dropped += 1

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(5.0)
        self._outbox.close()
        if self._directory is not None:
            self._directory.cleanup()

    def _run(self) -> None:
        poller = zmq.Poller()
        sockets = (self._engine, self._inbox, self._replay)
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        while not self._stopping.is_set():
            ready = dict(poller.poll(200))
            try:
                if self._inbox in ready:
                    self._tell(self._inbox.recv(zmq.DONTWAIT))
                if self._engine in ready:
                    self._relay(self._engine.recv_multipart(zmq.DONTWAIT))
                if self._replay in ready:
                    self._answer(self._replay.recv_multipart(zmq.DONTWAIT))
            except zmq.ZMQError:
                self.dropped += 1
            except Exception:
                logger.exception("the announcer dropped a message")
                time.sleep(0.05)  # whatever it is, not a busy loop
        for socket in (*sockets, self._pub, *([self._cache] if self._cache is not None else [])):
            socket.close()

    def _tell(self, message: bytes) -> None:
        self._pub.send_multipart([FIRST, message], zmq.DONTWAIT)
        told = decode_first_token(message)
        if self._cache is None or told is None or not told.computed or told.l1 != 0 or told.l2 != 0:
            return
        if told.computed >= _TELLING:
            self._cache.send_multipart([b"", encode_prefill(Prefill(told.computed, told.seconds))], zmq.DONTWAIT)

    def _relay(self, frames: list[bytes]) -> None:
        """One message of vLLM's publisher: topic, number, batch."""
        _, number, batch = frames
        if number_of(number) != self._engine_next:
            # Lost between the engine and us: there is no telling what was removed.
            self._publish(_CLEARED)
        self._engine_next = number_of(number) + 1
        self._publish(batch)

    def _publish(self, batch: bytes) -> None:
        number = self._keep(batch)
        self._pub.send_multipart([KV, number_bytes(number), batch], zmq.DONTWAIT)

    def _keep(self, batch: bytes) -> int:
        number, self._next = self._next, self._next + 1
        self._kept.append((number, batch))
        return number

    def _answer(self, frames: list[bytes]) -> None:
        asker, _, first = frames
        for number, batch in self._kept:
            if number >= number_of(first):
                self._replay.send_multipart([asker, b"", number_bytes(number), batch], zmq.DONTWAIT)
        self._replay.send_multipart([asker, b"", END, b""], zmq.DONTWAIT)

    def check_integrity(self) -> None:
        """Raises AssertionError if the kept batches are not the last ones, in order. Between two messages only."""
        numbers = [number for number, _ in self._kept]
        assert numbers == list(range(self._next - len(numbers), self._next)), (numbers[:3], self._next)


def _bound(context: "zmq.Context[zmq.Socket[bytes]]", kind: int, host: str) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = context.socket(kind)
    # A whole replay must fit: what exceeds the mark is dropped, and the asker's replay would have no end.
    socket.setsockopt(zmq.SNDHWM, _HIGH_WATER + KEPT)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(f"tcp://{host}:0")
    return socket


def _url(socket: "zmq.Socket[bytes]") -> str:
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
