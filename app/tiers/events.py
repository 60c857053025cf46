"""What a cache server tells the replicas and routers of the fleet, and how they listen.

One PUB socket per server; a message is one frame, `[kind, ...]` in msgpack:

    ["lookup", request_id, l1_tokens, l2_tokens]    what L1 served of a request's prefix, and how far L2 extended it

PUB never blocks the server and drops what nobody takes: a listener that misses a message knows less, never something
false. Nothing here imports lmcache, ray or vllm.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import zmq

_HIGH_WATER = 10_000


@dataclass(frozen=True)
class Lookup:
    """How a request's prefix was covered when it was looked up: `[0, l1)` by L1, `[l1, l1 + l2)` by L2, in tokens."""

    l1_tokens: int
    l2_tokens: int


def encode_lookup(request_id: str, lookup: Lookup) -> bytes:
    return msgspec.msgpack.encode(("lookup", request_id, lookup.l1_tokens, lookup.l2_tokens))


_Tokens = Annotated[int, msgspec.Meta(ge=0)]
# Typed, so that nothing but a lookup is even built: no recursion, no numbers that are none.
_lookups = msgspec.msgpack.Decoder(tuple[Literal["lookup"], str, _Tokens, _Tokens])


def decode_lookup(frame: bytes) -> tuple[str, Lookup] | None:
    """None for any other kind of message, and for anything malformed."""
    try:
        _, request_id, l1_tokens, l2_tokens = _lookups.decode(frame)
    except (msgspec.DecodeError, ValueError):  # ValueError: not UTF-8
        return None
    return request_id, Lookup(l1_tokens, l2_tokens)


class EventPublisher:
    """The server's end. `send` may be called from any one thread at a time, never blocks and never raises."""

    def __init__(self, host: str, port: int) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(f"tcp://{host}:{port}")
        self._lock = threading.Lock()
        self.dropped = 0

    def send(self, frame: bytes) -> None:
        with self._lock:
            try:
                self._socket.send(frame, zmq.DONTWAIT)
            except zmq.ZMQError:
                self.dropped += 1

    def close(self) -> None:
        with self._lock:
            self._socket.close()


class LookupFeed:
    """A replica's end: keeps the newest `capacity` lookups of its node's server by request id.

    One daemon thread reads; `take` waits for a lookup that is on its way. It survives restarts of the server (zmq
    reconnects by itself); what was published meanwhile is missing, and `take` then answers None.
    """

    def __init__(self, url: str, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._lookups: OrderedDict[str, Lookup] = OrderedDict()
        self._arrived = threading.Condition()
        self._stopping = threading.Event()
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(url)
        self._thread = threading.Thread(target=self._read, name="tierserve-lookups", daemon=True)
        self._thread.start()

    def take(self, request_id: str, timeout_s: float = 0.0) -> Lookup | None:
        """The lookup of `request_id`, once; None if it did not arrive within `timeout_s`. Blocks up to that long."""
        with self._arrived:
            self._arrived.wait_for(lambda: request_id in self._lookups, timeout_s)
            return self._lookups.pop(request_id, None)

    def peek(self, request_id: str) -> Lookup | None:
        """The lookup of `request_id` if it is here; it stays. Does not block."""
        with self._arrived:
            return self._lookups.get(request_id)

    def check_integrity(self) -> None:
        with self._arrived:
            assert len(self._lookups) <= self._capacity, (len(self._lookups), self._capacity)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(2.0)

    def _read(self) -> None:
        while not self._stopping.is_set():
            if self._socket.poll(200):
                self._keep(self._socket.recv())
        self._socket.close()

    def _keep(self, frame: bytes) -> None:
        decoded = decode_lookup(frame)
        if decoded is None:
            return
        request_id, lookup = decoded
        with self._arrived:
            self._lookups[request_id] = lookup
            self._lookups.move_to_end(request_id)
            while len(self._lookups) > self._capacity:
                self._lookups.popitem(last=False)
            self._arrived.notify_all()
