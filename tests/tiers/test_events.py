"""Publisher and feed over real sockets: what is sent arrives, what is malformed does not hurt, nothing grows."""

from collections.abc import Iterator

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from app.tiers.events import EventPublisher, Lookup, LookupFeed, decode_lookup, encode_lookup
from tests.conftest import WaitUntil


@pytest.fixture
def pair(unused_port: int, wait_until: WaitUntil) -> Iterator[tuple[EventPublisher, LookupFeed]]:
    """A publisher and a feed that hear each other: a subscription takes a moment."""
    publisher = EventPublisher("127.0.0.1", unused_port)
    feed = LookupFeed(f"tcp://127.0.0.1:{unused_port}", capacity=10)

    def heard() -> bool:
        publisher.send(encode_lookup("hello", Lookup(0, 0)))
        return feed.take("hello", 0.02) is not None

    wait_until(heard, "the feed is subscribed")
    yield publisher, feed
    feed.close()
    publisher.close()


def test_a_lookup_is_taken_once(pair: tuple[EventPublisher, LookupFeed]) -> None:
    publisher, feed = pair
    publisher.send(encode_lookup("a", Lookup(64, 128)))
    assert feed.take("a", 5.0) == Lookup(64, 128)
    assert feed.take("a") is None


def test_what_was_never_sent_is_none_at_the_deadline(pair: tuple[EventPublisher, LookupFeed]) -> None:
    assert pair[1].take("never", 0.01) is None


def test_only_the_newest_are_kept(pair: tuple[EventPublisher, LookupFeed]) -> None:
    publisher, feed = pair
    publisher.send(encode_lookup("again", Lookup(1, 1)))
    for number in range(9):
        publisher.send(encode_lookup(str(number), Lookup(number, 0)))
    publisher.send(encode_lookup("again", Lookup(2, 2)))  # newer than the nine before it
    for number in range(9, 15):
        publisher.send(encode_lookup(str(number), Lookup(number, 0)))
    publisher.send(encode_lookup("last", Lookup(0, 0)))
    assert feed.take("last", 5.0) is not None
    feed.check_integrity()
    assert feed.take("0") is None
    assert feed.take("again") == Lookup(2, 2)


MALFORMED = [
    b"",
    b"\xc1",
    b"\x91" * 100_000,  # lists in lists, deeper than any stack
    msgspec.msgpack.encode(("other", "a", 1, 2)),
    msgspec.msgpack.encode(("lookup", "a", 1)),
    msgspec.msgpack.encode(("lookup", "a", 1, 2, 3)),
    msgspec.msgpack.encode(("lookup", "a", -1, 2)),
    msgspec.msgpack.encode(("lookup", "a", 1.5, 2)),
    msgspec.msgpack.encode(("lookup", "a", float("inf"), 2)),
    msgspec.msgpack.encode(("lookup", None, 1, 2)),
    msgspec.msgpack.encode({"lookup": 1}),
    b"\x94\xa6lookup\xa1\xff\x01\x02",  # an id that is not UTF-8
]


@pytest.mark.parametrize("frame", MALFORMED)
def test_a_malformed_frame_is_no_lookup(frame: bytes) -> None:
    assert decode_lookup(frame) is None


@given(st.binary(max_size=60))
def test_no_frame_raises(frame: bytes) -> None:
    decode_lookup(frame)


@given(st.text(max_size=50), st.integers(0, 10**9), st.integers(0, 10**9))
def test_what_is_encoded_decodes(request_id: str, l1: int, l2: int) -> None:
    assert decode_lookup(encode_lookup(request_id, Lookup(l1, l2))) == (request_id, Lookup(l1, l2))


def test_the_feed_outlives_malformed_frames(pair: tuple[EventPublisher, LookupFeed]) -> None:
    publisher, feed = pair
    for frame in MALFORMED:
        publisher.send(frame)
    publisher.send(encode_lookup("after", Lookup(1, 2)))
    assert feed.take("after", 5.0) == Lookup(1, 2)


def test_a_publisher_without_listeners_neither_blocks_nor_counts(unused_port: int) -> None:
    publisher = EventPublisher("127.0.0.1", unused_port)
    for _ in range(20_000):
        publisher.send(b"x")
    assert publisher.dropped == 0
    publisher.close()
    publisher.send(b"x")
    assert publisher.dropped == 1, "sending after the end is counted, not raised"


def test_a_taken_port_is_an_error_of_the_publisher(unused_port: int) -> None:
    first = EventPublisher("127.0.0.1", unused_port)
    with pytest.raises(zmq.ZMQError):
        EventPublisher("127.0.0.1", unused_port)
    first.close()


def test_the_feed_hears_a_publisher_that_was_started_again(
    pair: tuple[EventPublisher, LookupFeed], unused_port: int, wait_until: WaitUntil
) -> None:
    publisher, feed = pair
    publisher.close()
    again: list[EventPublisher] = []

    def bound() -> bool:  # the port is free again a moment after close()
        try:
            again.append(EventPublisher("127.0.0.1", unused_port))
        except zmq.ZMQError:
            return False
        return True

    wait_until(bound, "the port is free again")

    def heard() -> bool:
        again[0].send(encode_lookup("back", Lookup(3, 4)))
        return feed.take("back", 0.02) == Lookup(3, 4)

    wait_until(heard, "the feed reconnected")
    again[0].close()
