"""Whatever is lost, doubled or late: what a follower passes on is what the server holds, or nothing."""

import random

from hypothesis import given
from hypothesis import strategies as st

from app.routing.tier_index import TierIndex
from app.serving.tier_follower import ASK_AGAIN_S, GONE_S, TierFollower
from app.tier_events import Scope, TierMessage
from app.tiers.holdings import Held, Holdings

SCOPE = Scope("m")
CHUNKS = [bytes([number]) * 32 for number in range(8)]


class Link:
    """A server and a follower with an index, and a wire between them that loses and delays."""

    def __init__(self, seed: int) -> None:
        self.numbers = random.Random(seed)
        self.server, self.now = Holdings("l1"), 0.0
        self.follower, self.index = TierFollower(), TierIndex()
        self.wire: list[TierMessage] = []

    def change(self) -> None:
        keys: list[Held] = [(SCOPE, self.numbers.choice(CHUNKS)) for _ in range(2)]
        message = self.server.store(keys) if self.numbers.random() < 0.6 else self.server.remove(keys)
        if message is not None and self.numbers.random() < 0.8:
            self.wire.append(message)

    def restart(self) -> None:
        self.server = Holdings("l1")

    def deliver(self) -> None:
        if self.wire:
            self.apply(self.follower.hear(self.wire.pop(0), self.now))

    def ask(self) -> None:
        """The answer overtakes what is still on the wire, as another socket's may."""
        if self.follower.wants_to_ask(self.now):
            self.apply(self.follower.answer(self.server.snapshot(), self.now))

    def apply(self, messages: list[TierMessage]) -> None:
        for message in messages:
            assert self.index.apply(message.batch("node")) is None
        self.follower.check_integrity()
        self.index.check_integrity()

    def settle(self) -> None:
        """Quiet: the wire empties, a sign of life shows the last gap, and the whole is asked for once more."""
        while self.wire:
            self.deliver()
        self.now += ASK_AGAIN_S
        self.ask()
        self.apply(self.follower.hear(self.server.alive(), self.now))
        self.now += ASK_AGAIN_S
        self.ask()

    def agrees(self) -> bool:
        held = {chunk for _, chunk in self.server}
        return all(bool(self.index.runs(SCOPE, [chunk])) == (chunk in held) for chunk in CHUNKS)


@given(st.integers(0, 10_000), st.lists(st.sampled_from(["change", "deliver", "ask", "restart"]), max_size=60))
def test_it_agrees_with_the_server_once_all_is_quiet(seed: int, steps: list[str]) -> None:
    link = Link(seed)
    for step in steps:
        getattr(link, step)()
    link.settle()
    assert link.follower.following
    assert link.agrees()


def test_a_gap_is_seen_at_the_next_sign_of_life() -> None:
    link = Link(0)
    link.ask()
    link.server.store([(SCOPE, CHUNKS[0])])  # lost on the way
    assert link.follower.hear(link.server.alive(), 0.0) == []
    assert not link.follower.following
    assert link.follower.wants_to_ask(0.0), "at once, whenever it was asked last"
    assert not link.follower.wants_to_ask(0.0), "and then not again for a while"


def test_a_silent_server_is_gone_once_and_comes_back() -> None:
    link = Link(0)
    link.server.store([(SCOPE, CHUNKS[0])])
    link.ask()
    assert not link.follower.gone(GONE_S / 2)
    assert link.follower.gone(GONE_S)
    assert not link.follower.gone(2 * GONE_S)
    link.now = 2 * GONE_S
    link.ask()
    assert link.follower.following
    assert link.agrees()
