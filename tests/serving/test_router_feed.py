"""The feed between real announcers, a real tier publisher and a real routing core: over sockets, on this machine."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
import zmq

from app.kv_salt import kv_salt
from app.routing.core import RoutingCore
from app.routing.kv_events import Batch, BlockRemoved, BlockStored
from app.routing.kv_keys import chunk_keys, pack
from app.routing.policy import Choice, Replica, Request
from app.routing.prompt import read_prompt
from app.serving.announcement import FirstToken, ReplicaFeed
from app.serving.announcer import Announcer
from app.serving.router_feed import RouterFeed, Source
from app.tier_events import Scope
from app.tiers.cache_server import free_ports
from app.tiers.tier_publisher import TierPublisher
from tests.conftest import WaitUntil

TOKENS = list(range(640))
CHUNK = 64
PLACE = ("app", "engine:m")


class Engine:
    """What vLLM would publish, to a real announcer."""

    def __init__(self, wait_until: WaitUntil) -> None:
        self.announcer = Announcer("127.0.0.1", kv_events=True)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.socket = context.socket(zmq.PUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(self.announcer.engine_url)
        self.next = 0
        # An engine binds seconds before its first event; here its replica must be given time to connect.
        wait_until(self._heard, "the announcer hears the engine")

    def _heard(self) -> bool:
        self.publish()
        return len(self.announcer._kept) > 1

    def publish(self, *events: BlockStored | BlockRemoved) -> None:
        batch = msgspec.msgpack.encode(Batch(1.0, list(events)))
        self.socket.send_multipart([b"", self.next.to_bytes(8, "big"), batch])
        self.next += 1

    def close(self) -> None:
        self.socket.close()
        self.announcer.close()


class Bench:
    """A core that routes to two replicas on one node, the feed that tells it, and what the feed listens to."""

    def __init__(self, wait_until: WaitUntil, strategy: str = "kv_aware") -> None:
        options: dict[str, object] = {"chunk_tokens": CHUNK} if strategy == "kv_aware" else {}
        self.core = RoutingCore(strategy, options)
        self.core.update_replicas([Replica("a", "node", 10), Replica("b", "node", 10)])
        self.engines = {name: Engine(wait_until) for name in "ab"}
        self.tier_port, self.ask_port = free_ports(2)
        self.server: TierPublisher | None = self.start_server()
        self.feed = RouterFeed()
        self.wait_until = wait_until
        self.asked = 0

    def start_server(self) -> TierPublisher:
        self.server = TierPublisher("127.0.0.1", self.tier_port, self.ask_port)
        return self.server

    def stop_server(self) -> None:
        if self.server is not None:
            self.server.close()
        self.server = None

    def source(self, name: str, cache_model: str = "weights") -> Source:
        at = self.engines[name].announcer
        tiers, ask = (f"tcp://127.0.0.1:{port}" for port in (self.tier_port, self.ask_port))
        return Source(name, "node", ReplicaFeed(at.events_url, at.replay_url, tiers, ask, cache_model))

    def follow(self, *names: str, **kwargs: Any) -> None:
        self.feed.follow(PLACE, self.core, {name: self.source(name, **kwargs) for name in names})

    def status(self, name: str) -> float:
        return self.core.status().get(name, 0.0)

    def until(self, name: str, value: float) -> None:
        self.wait_until(lambda: self.status(name) == value, f"{name} is {value}", 20.0)

    def choices(self, tokens: list[int] = TOKENS, salt: str = "", model: str = "m") -> dict[str, Choice]:
        self.asked += 1
        body = {"prompt": "p", "model": model, "cache_salt": salt}
        request = Request(f"asked-{self.asked}", read_prompt(body), None, tokens, "")
        ranking = self.core.choose(request)
        self.core.settled(request.id, None)
        assert ranking.degraded is None
        return {choice.replica: choice for choice in ranking.choices}

    def close(self) -> None:
        self.feed.close()
        self.stop_server()
        for engine in self.engines.values():
            engine.close()
        self.core.check_integrity()


@pytest.fixture
def bench(wait_until: WaitUntil) -> Iterator[Bench]:
    made = Bench(wait_until)
    yield made
    made.close()


def stored(tokens: list[int] = TOKENS) -> BlockStored:
    return BlockStored(list(range(1, len(tokens) // 16 + 1)), None, tokens, 16, medium="GPU")


def held(tokens: list[int] = TOKENS, salt: str = "", model: str = "weights") -> list[tuple[Scope, bytes]]:
    return [(Scope(model, salt), chunk) for chunk in chunk_keys(pack(tokens), CHUNK)]


def test_idle_engines_are_known_to_hold_nothing(bench: Bench) -> None:
    bench.follow("a", "b")
    bench.until("l0_engines", 2)
    assert {choice.match for choice in bench.choices().values()} == {0}, "not degraded: nothing is held, and known so"


def test_blocks_are_followed_live_and_by_replay(bench: Bench) -> None:
    """One engine has published before anybody listened, the other does while the router follows it."""
    bench.engines["a"].publish(stored())
    bench.follow("a", "b")
    bench.until("l0_engines", 2)
    bench.until("l0_blocks", 40)
    bench.engines["b"].publish(stored(TOKENS[:320]))
    bench.until("l0_blocks", 60)
    assert {name: choice.match for name, choice in bench.choices().items()} == {"a": 640, "b": 320}
    bench.engines["a"].publish(BlockRemoved(list(range(11, 41)), medium="GPU"))
    bench.until("l0_blocks", 30)
    assert {name: choice.match for name, choice in bench.choices().items()} == {"a": 160, "b": 320}


def test_tiers_are_followed_by_snapshot_and_change(bench: Bench) -> None:
    assert bench.server is not None
    bench.server.stored("l1", held(TOKENS[:128]))
    bench.server.stored("l2", held())
    bench.follow("a", "b")
    bench.until("l1_chunks", 2)
    bench.until("l2_chunks", 10)
    bench.until("l0_engines", 2)
    assert {(one.l1, one.l2) for one in bench.choices().values()} == {(128, 512)}
    bench.server.stored("l1", held(TOKENS[:256]))
    bench.server.removed("l2", held()[-1:])
    bench.until("l1_chunks", 4)
    bench.until("l2_chunks", 9)
    assert {(one.l1, one.l2) for one in bench.choices().values()} == {(256, 320)}


def test_other_models_tenants_and_adapters_are_kept_apart(bench: Bench) -> None:
    assert bench.server is not None
    bench.server.stored("l1", held(model="another"))
    bench.server.stored("l1", held(TOKENS[:128], salt="tenant"))
    bench.server.stored("l1", held(TOKENS[:192], salt=kv_salt("", "m:adapter")))
    bench.follow("a")
    bench.until("l1_chunks", 5)
    bench.until("l0_engines", 1)

    def l1(salt: str = "", model: str = "m") -> int:
        return bench.choices(salt=salt, model=model)["a"].l1

    bench.core.update_replicas([Replica("a", "node", 10)])
    assert [l1(), l1(salt="tenant"), l1(model="m:adapter"), l1(model="m:other")] == [0, 128, 192, 0]


def test_an_adapters_kv_is_expected_once_a_replica_has_told_its_weights(bench: Bench) -> None:
    assert bench.server is not None
    bench.server.stored("l1", held(TOKENS[:128], salt=kv_salt("", "m:a@old")))
    bench.server.stored("l1", held(TOKENS[:192], salt=kv_salt("", "m:a@new")))
    bench.follow("a")
    bench.until("l1_chunks", 5)
    bench.until("l0_engines", 1)
    bench.core.update_replicas([Replica("a", "node", 10)])
    assert bench.choices(model="m:a")["a"].l1 == 0

    def expected(tokens: int) -> bool:
        return bench.choices(model="m:a")["a"].l1 == tokens

    for identity, tokens in (("m:a@old", 128), ("m:a@new", 192)):
        bench.engines["a"].announcer.first_token(FirstToken("r", 0.1, adapter=identity))
        bench.wait_until(partial(expected, tokens), identity)
    assert bench.choices(model="m:b")["a"].l1 == 0


def test_a_server_that_is_gone_holds_nothing_and_starts_again_from_its_own(bench: Bench) -> None:
    assert bench.server is not None
    bench.server.stored("l1", held())
    bench.follow("a", "b")
    bench.until("l1_chunks", 10)
    bench.stop_server()
    bench.until("l1_chunks", 0)
    assert bench.feed.counts["tiers_gone"] >= 1
    bench.start_server().stored("l1", held(TOKENS[:64]))
    bench.until("l1_chunks", 1)


def test_first_tokens_give_back_prefill_and_say_what_was_hit(bench: Bench) -> None:
    bench.follow("a")
    bench.until("l0_engines", 1)
    body = {"prompt": "p", "model": "m"}
    bench.core.update_replicas([Replica("a", "node", 10)])
    bench.core.choose(Request("r", read_prompt(body), None, TOKENS, ""))
    bench.core.settled("r", "a")
    bench.core.accepted("r", "a")
    before = bench.core.load.units(0)
    announcer = bench.engines["a"].announcer
    announcer.first_token(FirstToken("unknown", 0.1, 0, 0, 0, 640))
    announcer.first_token(FirstToken("r", 0.5, 16, 64, 0, 560))
    bench.until("hit_tokens_reported", 80)
    assert bench.status("prompt_tokens") == 640
    assert bench.core.load.units(0) < before
    assert bench.status("prefill_observations") == 1
    bench.core.ended("r", "a")
    assert bench.status("in_flight") == 0


def test_a_replica_that_is_left_is_heard_no_more(bench: Bench) -> None:
    bench.follow("a", "b")
    bench.until("l0_engines", 2)
    bench.core.update_replicas([Replica("b", "node", 10)])
    bench.follow("b")
    bench.engines["a"].publish(stored())
    bench.engines["b"].publish(stored(TOKENS[:160]))
    bench.until("l0_blocks", 10)
    assert bench.status("l0_engines") == 1


def test_strategies_without_tokens_hear_first_tokens_only(wait_until: WaitUntil) -> None:
    bench = Bench(wait_until, "prefix_aware")
    bench.follow("a", "b")
    bench.core.choose(Request("r", read_prompt({"prompt": "p"}), None, None, ""))
    bench.core.settled("r", "a")

    def heard() -> bool:
        bench.engines["a"].announcer.first_token(FirstToken("r", 0.5, 0, 0, 0, 640))
        return bench.feed.counts["first_tokens"] > 0

    wait_until(heard, "the feed hears the replica")
    bench.engines["a"].publish(stored())
    assert bench.feed.counts["kv_events"] == bench.feed.counts["tier_events"] == 0
    bench.core.ended("r", "a")
    bench.close()
