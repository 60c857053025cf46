"""A follower that applies every message holds what the server holds, whatever happens in between."""

from hypothesis import given
from hypothesis import strategies as st

from app.routing.tier_index import TierIndex
from app.tier_events import Scope, TierMessage, decode_tier, encode_tier
from app.tiers.holdings import Held, Holdings

SCOPES = [Scope("m"), Scope("m", "tenant"), Scope("n")]
CHUNKS = [bytes([number]) * 32 for number in range(6)]
KEYS = st.lists(st.tuples(st.sampled_from(SCOPES), st.sampled_from(CHUNKS)), max_size=8)
STEPS = st.lists(st.tuples(st.sampled_from(["store", "remove", "forget", "snapshot"]), KEYS), max_size=30)


def told(index: TierIndex, message: TierMessage | None) -> None:
    if message is not None:
        decoded = decode_tier(encode_tier(message))
        assert decoded == message
        assert index.apply(message.batch("node")) is None, "nothing is missing"


@given(STEPS)
def test_messages_carry_exactly_what_is_held(steps: list[tuple[str, list[Held]]]) -> None:
    holdings, index, held = Holdings("l1"), TierIndex(), set[Held]()
    told(index, holdings.snapshot())
    for what, keys in steps:
        if what == "store":
            held |= set(keys)
            told(index, holdings.store(keys))
        elif what == "remove":
            held -= set(keys)
            told(index, holdings.remove(keys))
        elif what == "forget":
            held.clear()
            told(index, holdings.forget())
        else:
            told(index, holdings.snapshot())
        holdings.check_integrity()
        index.check_integrity()
        assert set(holdings) == held
        for scope in SCOPES:
            for chunk in CHUNKS:
                assert bool(index.runs(scope, [chunk])) == ((scope, chunk) in held)


def test_what_is_not_new_is_not_said() -> None:
    holdings, key = Holdings("l1"), (SCOPES[0], CHUNKS[0])
    assert holdings.store([key]) is not None
    assert holdings.store([key, key]) is None
    assert holdings.remove([(SCOPES[1], CHUNKS[0])]) is None
    assert holdings.remove([key]) is not None
    assert holdings.remove([key]) is None


def test_beyond_the_bound_nothing_is_announced() -> None:
    holdings = Holdings("l2", most=2)
    message = holdings.store([(SCOPES[0], chunk) for chunk in CHUNKS])
    assert message is not None
    assert sum(len(event.chunks) for event in message.events) == holdings.chunks == 2
    assert holdings.refused == len(CHUNKS) - 2
    holdings.check_integrity()


def test_a_sign_of_life_repeats_the_number() -> None:
    holdings = Holdings("l1")
    first = holdings.store([(SCOPES[0], CHUNKS[0])])
    assert first is not None
    assert (holdings.alive().seq, holdings.alive().events, holdings.alive().snapshot) == (first.seq, [], False)


@given(st.binary(max_size=200))
def test_malformed_frames_are_nothing(frame: bytes) -> None:
    assert decode_tier(frame) is None or frame.startswith(b"\x97\xa4tier")
