"""What an engine publishes reaches routers under numbers that begin at 0, and what they missed they can ask for."""

from collections.abc import Iterator

import msgspec
import pytest
import zmq

from app.routing.kv_events import decode_batch
from app.serving.announcement import END, FIRST, KV, FirstToken, decode_first_token, number_bytes, number_of
from app.serving.announcer import Announcer
from tests.conftest import WaitUntil

BATCH = msgspec.msgpack.encode([1.0, []])


class Listener:
    """A router's sockets, without the router."""

    def __init__(self, announcer: Announcer) -> None:
        self.events = self._open(zmq.SUB, announcer.events_url)
        self.events.setsockopt(zmq.SUBSCRIBE, b"")
        self.replay = self._open(zmq.DEALER, announcer.replay_url) if announcer.replay_url else None

    def _open(self, kind: int, url: str) -> "zmq.Socket[bytes]":
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        socket = context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(url)
        return socket

    def hear(self, timeout_ms: int = 5000) -> list[bytes] | None:
        return self.events.recv_multipart() if self.events.poll(timeout_ms) else None

    def ask(self, first: int) -> list[tuple[int, bytes]]:
        assert self.replay is not None
        self.replay.send_multipart([b"", number_bytes(first)])
        batches: list[tuple[int, bytes]] = []
        while self.replay.poll(5000):
            _, number, batch = self.replay.recv_multipart()
            if number == END:
                return batches
            batches.append((number_of(number), batch))
        raise AssertionError("the replay has no end")

    def close(self) -> None:
        for socket in (self.events, self.replay):
            if socket is not None:
                socket.close()


class Engine:
    """vLLM's publisher as its replica sees it: a socket that binds, and numbers from 0."""

    def __init__(self, url: str) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.socket = context.socket(zmq.PUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(url)
        self.next = 0

    def publish(self, batch: bytes) -> None:
        self.socket.send_multipart([b"", self.next.to_bytes(8, "big"), batch])
        self.next += 1


@pytest.fixture
def announcer() -> Iterator[Announcer]:
    made = Announcer("127.0.0.1", kv_events=True)
    yield made
    made.close()
    made.check_integrity()


@pytest.fixture
def listener(announcer: Announcer, wait_until: WaitUntil) -> Iterator[Listener]:
    """One whose subscription is known to have arrived."""
    made = Listener(announcer)

    def heard() -> bool:
        announcer.first_token(FirstToken("hello", 0.0))
        return made.hear(20) is not None

    wait_until(heard, "the listener is subscribed")
    while made.hear(50) is not None:
        pass
    yield made
    made.close()


@pytest.fixture
def engine(announcer: Announcer, listener: Listener, wait_until: WaitUntil) -> Iterator[Engine]:
    """One that the announcer is known to hear."""
    made = Engine(announcer.engine_url)

    def heard() -> bool:
        made.publish(BATCH)
        return listener.hear(20) is not None

    wait_until(heard, "the announcer hears the engine")
    while listener.hear(50) is not None:
        pass
    yield made
    made.socket.close()


def test_a_first_token_is_heard(announcer: Announcer, listener: Listener) -> None:
    told = FirstToken("request", 0.25, 16, 64, None, 3)
    announcer.first_token(told)
    frames = listener.hear()
    assert frames is not None
    assert frames[0] == FIRST
    assert decode_first_token(frames[1]) == told


def test_whoever_asks_before_any_event_learns_that_there_was_none(announcer: Announcer, listener: Listener) -> None:
    [(number, batch)] = listener.ask(0)
    assert number == 0
    decoded = decode_batch(batch)
    assert decoded is not None
    assert decoded.events == []


def test_events_are_passed_on_and_kept(announcer: Announcer, listener: Listener, engine: Engine) -> None:
    known = len(listener.ask(0))
    batches = [msgspec.msgpack.encode([float(number), []]) for number in range(5)]
    for batch in batches:
        engine.publish(batch)
    heard = [listener.hear() for _ in batches]
    assert [frames and (frames[0], number_of(frames[1]), frames[2]) for frames in heard] == [
        (KV, known + at, batch) for at, batch in enumerate(batches)
    ]
    assert listener.ask(known + 3) == [(known + 3, batches[3]), (known + 4, batches[4])]


def test_a_loss_on_the_way_from_the_engine_clears(announcer: Announcer, listener: Listener, engine: Engine) -> None:
    engine.next += 7
    engine.publish(BATCH)
    first, second = listener.hear(), listener.hear()
    assert first is not None
    assert second is not None
    decoded = decode_batch(first[2])
    assert decoded is not None
    assert [type(event).__name__ for event in decoded.events] == ["AllBlocksCleared"]
    assert (number_of(second[1]), second[2]) == (number_of(first[1]) + 1, BATCH)


def test_garbage_on_its_sockets_does_not_end_it(announcer: Announcer, listener: Listener, engine: Engine) -> None:
    assert listener.replay is not None
    engine.socket.send(b"one frame")
    listener.replay.send(b"no number")
    engine.publish(BATCH)
    assert listener.hear() is not None


def test_without_kv_events_there_is_nothing_to_replay() -> None:
    announcer = Announcer("127.0.0.1", kv_events=False)
    assert announcer.replay_url == ""
    assert announcer.engine_arguments() == {}
    announcer.close()
