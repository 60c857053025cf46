"""A router's ear: one thread per process that listens to all replicas and cache servers of what it routes to, and
tells the routing cores. It also exports their counters.

    replica      first tokens, KV events (announcement.py)    -> core.first_token, completed, engine_events
    cache server what L1 and L2 hold (tier_events.py)         -> core.tier_events, tier_gone

Routing works without it, only on less: whatever fails here is counted and logged, and nothing else.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import zmq

from app.ray_metrics import RayMetrics
from app.routing.core import RoutingCore
from app.routing.policy import CacheReport
from app.routing.registry import cores
from app.serving.announcement import END, FIRST, KV, ReplicaFeed, decode_first_token, number_bytes, number_of
from app.serving.router_metrics import samples
from app.serving.tier_follower import TierFollower
from app.tier_events import TIER_PREFIX, TIERS, Removed, Scope, Stored, Tier, TierBatch, decode_tier

logger = logging.getLogger("tierserve.routing")

REPLAY_S = 5.0
"""A replay that has not ended by then is taken for over: the replica is gone, or its answer was."""
_TICK_MS = 250
_METRICS_S = 5.0
_AT_ONCE = 200
"""Messages taken from one socket before the others have their turn."""
_HIGH_WATER = 100_000

Place = tuple[str, str]
"""Application and deployment."""
_Socket = zmq.Socket[bytes]


@dataclass(frozen=True)
class Source:
    """A replica as Serve names it, its node, and where it is heard."""

    replica: str
    node: str
    feed: ReplicaFeed


@dataclass
class _Replica:
    source: Source
    core: RoutingCore
    events: _Socket
    replay: _Socket | None
    asked: float | None = None


@dataclass
class _Server:
    node: str
    cache_model: str
    core: RoutingCore
    events: _Socket
    ask: _Socket
    followers: dict[Tier, TierFollower] = field(default_factory=lambda: {tier: TierFollower() for tier in TIERS})


class RouterFeed:
    """`follow` may be called from any thread, and neither blocks nor raises; the thread is a daemon."""

    def __init__(self) -> None:
        self._context: zmq.Context[_Socket] = zmq.Context.instance()
        self._wanted: deque[tuple[Place, RoutingCore, dict[str, Source]]] = deque()
        self._replicas: dict[tuple[Place, str], _Replica] = {}
        self._servers: dict[tuple[Place, str], _Server] = {}
        self._poller = zmq.Poller()
        self._owner: dict[_Socket, _Replica | _Server] = {}
        self.counts: Counter[str] = Counter()
        self._metrics, self._publish_at = RayMetrics(), 0.0
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tierserve-router-feed", daemon=True)
        self._thread.start()

    def follow(self, place: Place, core: RoutingCore, sources: Mapping[str, Source]) -> None:
        """Listen to these replicas of a deployment, by id, and to no others of it."""
        self._wanted.append((place, core, dict(sources)))
        self._wake.set()

    def close(self) -> None:
        self._stopping.set()
        self._wake.set()
        self._thread.join(5.0)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                while self._wanted:
                    self._follow(*self._wanted.popleft())
                self._tick(time.monotonic())
                if not self._owner:
                    self._wake.wait(1.0)
                    self._wake.clear()
                    continue
                for socket, _ in self._poller.poll(_TICK_MS):
                    self._read(socket)
            except Exception:
                self.counts["failed"] += 1
                logger.exception("the router's feed dropped something")
                time.sleep(0.1)  # whatever it is, not a busy loop
        for socket in list(self._owner):
            self._close(socket)

    def _follow(self, place: Place, core: RoutingCore, sources: dict[str, Source]) -> None:
        for key in [key for key in self._replicas if key[0] == place]:
            known = self._replicas[key]
            if sources.get(key[1]) != known.source or known.core is not core:
                self._leave_replica(key)
        for name, source in sources.items():
            if (place, name) not in self._replicas:
                self._replicas[place, name] = self._join_replica(core, source)
        nodes = {source.node: source.feed for source in sources.values() if source.feed.tiers and core.tokens_wanted()}
        for key in [key for key in self._servers if key[0] == place]:
            if key[1] not in nodes or self._servers[key].core is not core:
                self._leave_server(key)
        for node, feed in nodes.items():
            if (place, node) not in self._servers:
                self._servers[place, node] = self._join_server(core, node, feed)

    def _join_replica(self, core: RoutingCore, source: Source) -> _Replica:
        events = self._socket(zmq.SUB, source.feed.events)
        events.setsockopt(zmq.SUBSCRIBE, FIRST)
        replay = None
        if source.feed.replay and core.tokens_wanted():
            events.setsockopt(zmq.SUBSCRIBE, KV)
            replay = self._socket(zmq.DEALER, source.feed.replay)
        replica = _Replica(source, core, events, replay)
        self._own(replica, events, replay)
        if replay is not None:
            self._ask_replay(replica, 0)
        return replica

    def _join_server(self, core: RoutingCore, node: str, feed: ReplicaFeed) -> _Server:
        events = self._socket(zmq.SUB, feed.tiers)
        events.setsockopt(zmq.SUBSCRIBE, TIER_PREFIX)
        server = _Server(node, feed.cache_model, core, events, self._socket(zmq.DEALER, feed.ask))
        self._own(server, events, server.ask)
        return server

    def _leave_replica(self, key: tuple[Place, str]) -> None:
        replica = self._replicas.pop(key)
        self._close(replica.events)
        if replica.replay is not None:
            self._close(replica.replay)

    def _leave_server(self, key: tuple[Place, str]) -> None:
        server = self._servers.pop(key)
        self._close(server.events)
        self._close(server.ask)
        for tier in TIERS:
            server.core.tier_gone(tier, server.node)

    def _tick(self, now: float) -> None:
        if now >= self._publish_at:
            self._publish_at = now + _METRICS_S
            for place, core in cores().items():
                self._metrics.publish(samples(*place, core))
        for replica in self._replicas.values():
            if replica.asked is not None and now - replica.asked > REPLAY_S:
                self.counts["replays_lost"] += 1
                self._replay_ended(replica)
        for server in self._servers.values():
            for tier, follower in server.followers.items():
                if follower.gone(now):
                    self.counts["tiers_gone"] += 1
                    server.core.tier_gone(tier, server.node)
                if follower.wants_to_ask(now):
                    server.ask.send_multipart([b"", tier.encode()], zmq.DONTWAIT)

    def _read(self, socket: _Socket) -> None:
        owner = self._owner.get(socket)
        for _ in range(_AT_ONCE):
            try:
                frames = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            if isinstance(owner, _Replica):
                self._from_replica(owner, frames, replayed=socket is owner.replay)
            elif isinstance(owner, _Server):
                self._from_server(owner, frames[-1], asked=socket is owner.ask)

    # --- replicas -----------------------------------------------------------------------------------------------------

    def _from_replica(self, replica: _Replica, frames: list[bytes], *, replayed: bool) -> None:
        if frames[0] == FIRST:
            self._first_token(replica, frames[1])
            return
        _, number, batch = frames
        if replayed and number == END:
            self._replay_ended(replica)
            return
        self.counts["kv_events"] += 1
        name = replica.source.replica
        replay_from = replica.core.engine_events(name, number_of(number), batch, replayed=replayed)
        if replay_from is not None and replica.asked is None:
            self._ask_replay(replica, replay_from)

    def _first_token(self, replica: _Replica, frame: bytes) -> None:
        told = decode_first_token(frame)
        if told is None:
            self.counts["malformed"] += 1
            return
        self.counts["first_tokens"] += 1
        core, name = replica.core, replica.source.replica
        core.first_token(told.request, name)
        if told.adapter:
            core.adapter_is(told.adapter)
        if told.l0 is not None and told.l1 is not None and told.l2 is not None and told.computed is not None:
            total = told.l0 + told.l1 + told.l2 + told.computed
            report = CacheReport(total, told.l0, told.l1, told.l2, told.computed)
            core.completed(told.request, report, name, first_token_s=told.seconds)

    def _ask_replay(self, replica: _Replica, first: int) -> None:
        assert replica.replay is not None, replica.source
        replica.asked = time.monotonic()
        replica.replay.send_multipart([b"", number_bytes(first)], zmq.DONTWAIT)

    def _replay_ended(self, replica: _Replica) -> None:
        replica.asked = None
        again = replica.core.replay_ended(replica.source.replica)
        if again is not None:
            self._ask_replay(replica, again)

    # --- cache servers ------------------------------------------------------------------------------------------------

    def _from_server(self, server: _Server, frame: bytes, *, asked: bool) -> None:
        message = decode_tier(frame)
        if message is None:
            self.counts["malformed"] += 1
            return
        follower, now = server.followers[message.tier], time.monotonic()
        ready = follower.answer(message, now) if asked else follower.hear(message, now)
        for one in ready:
            self.counts["tier_events"] += 1
            server.core.tier_events(message.tier, _of_model(one.batch(server.node), server.cache_model))

    # --- sockets ------------------------------------------------------------------------------------------------------

    def _socket(self, kind: int, url: str) -> _Socket:
        socket: _Socket = self._context.socket(kind)
        socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(url)
        return socket

    def _own(self, owner: "_Replica | _Server", *sockets: _Socket | None) -> None:
        for socket in sockets:
            if socket is not None:
                self._owner[socket] = owner
                self._poller.register(socket, zmq.POLLIN)

    def _close(self, socket: _Socket) -> None:
        self._poller.unregister(socket)
        del self._owner[socket]
        socket.close()


def _of_model(batch: TierBatch, cache_model: str) -> TierBatch:
    """Without what the server holds of other models. A core routes to one, and needs no name for it."""
    events: list[Stored | Removed] = [
        type(event)(Scope("", event.scope.salt), event.chunks)
        for event in batch.events
        if event.scope.model == cache_model
    ]
    return TierBatch(batch.owner, batch.incarnation, batch.seq, batch.ts, events, batch.snapshot)


_lock = threading.Lock()
_feed: list[RouterFeed] = []


def router_feed() -> RouterFeed:
    """The process's one, started on first use."""
    with _lock:
        if not _feed:
            _feed.append(RouterFeed())
        return _feed[0]
