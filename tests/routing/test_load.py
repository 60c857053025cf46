"""Load counts cannot drift: whatever comes late, twice, in another order or never, everything taken is given back."""

import random

from app.routing.load import FOREIGN_S, RECENT_S, TENTATIVE_S, LoadBook


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(replicas: int) -> tuple[LoadBook, Clock]:
    clock = Clock()
    book = LoadBook(clock, random.Random(2).random)
    for slot in range(replicas):
        book.add_replica(slot)
    return book, clock


def idle(book: LoadBook, slot: int) -> bool:
    busy = book.busy(slot)
    return (busy.requests, busy.units) == (0, 0)


def test_a_hundred_thousand_events_in_any_order_end_at_zero() -> None:
    """Choices, retries, rejections, cancellations, errors, deaths, late and doubled callbacks, at random."""
    rng = random.Random(7)
    book, clock = make(6)
    alive = set(range(6))
    open_: list[tuple[str, int]] = []
    made = 0
    for step in range(100_000):
        clock.now += rng.random() * 0.01
        what = rng.random()
        if what < 0.3 or not open_:
            made += 1
            slot = rng.randrange(6)
            book.assign(f"q{made}", slot, rng.randrange(50), rng.randrange(400), loads=rng.random() < 0.4)
            open_.append((f"q{made}", slot))
            continue
        request, slot = open_[rng.randrange(len(open_))]
        if what < 0.5:
            book.settle(request, rng.choice([slot, slot, slot, rng.randrange(6), None]))
        elif what < 0.6:
            book.confirm(request, slot)
        elif what < 0.65:
            book.first_token(request, slot)
        elif what < 0.9:
            book.release(request, rng.choice([slot, slot, slot, rng.randrange(6)]))
        elif what < 0.94:
            book.assign(request, rng.randrange(6), rng.randrange(50), rng.randrange(400), loads=rng.random() < 0.4)
        elif what < 0.97:
            book.observe(slot, rng.randrange(20))
        elif what < 0.98:
            victim = rng.randrange(6)
            (book.drop_replica if victim in alive else book.add_replica)(victim)
            alive ^= {victim}
        else:
            book.expire()
        if len(open_) > 60:
            open_.pop(rng.randrange(len(open_)))
        if step % 500 == 0:
            book.check_integrity()
            assert all(book.busy(one).units >= 0 for one in range(6))
    # In the end every request is over: each lease ends by its release, or by the clock if it was never confirmed.
    for number in range(made + 1):
        for slot in range(6):
            for _ in range(4):
                book.release(f"q{number}", slot)
    clock.now += TENTATIVE_S + FOREIGN_S
    book.expire()
    book.check_integrity()
    assert all(idle(book, slot) for slot in range(6))
    assert book.total_requests == 0


def test_a_choice_counts_before_it_is_sent() -> None:
    book, _ = make(2)
    book.assign("a", 0, 10)
    assert book.busy(0).units > book.busy(1).units
    book.settle("a", 1)
    assert idle(book, 0)
    assert book.busy(1).requests == 1


def test_a_caller_that_leaves_before_sending_gives_back() -> None:
    book, _ = make(1)
    book.assign("a", 0, 10)
    book.settle("a", None)
    assert idle(book, 0)


def test_a_choice_nobody_speaks_of_again_expires_but_a_running_request_does_not() -> None:
    book, clock = make(1)
    book.assign("never sent", 0, 10)
    book.assign("running", 0, 10)
    book.settle("running", 0)
    book.confirm("running", 0)
    clock.now += TENTATIVE_S
    book.expire()
    assert book.busy(0).requests == 1
    clock.now += 100 * TENTATIVE_S
    book.expire()
    assert book.busy(0).requests == 1


def test_a_late_end_of_a_rejected_try_does_not_end_the_second_try() -> None:
    book, _ = make(2)
    book.assign("a", 0, 10)
    book.settle("a", 0)
    book.assign("a", 1, 10)
    book.settle("a", 1)
    book.release("a", 0)
    assert idle(book, 0)
    assert book.busy(1).requests == 1


def test_the_first_token_frees_the_prefill_part_once() -> None:
    book, _ = make(1)
    book.assign("a", 0, 100)
    book.settle("a", 0)
    book.first_token("a", 0)
    book.first_token("a", 0)
    assert 0 < book.busy(0).units < 10
    book.check_integrity()


def test_what_other_routers_sent_counts_until_it_is_stale() -> None:
    book, clock = make(2)
    book.assign("a", 0, 0)
    book.observe(0, 5)
    assert book.requests(0) == 5
    clock.now += FOREIGN_S / 2
    book.observe(0, 3)
    clock.now += FOREIGN_S / 2
    book.expire()
    assert book.requests(0) == 3
    clock.now += FOREIGN_S
    book.expire()
    assert book.requests(0) == 1


def test_the_least_busy_come_first_and_ties_are_broken_evenly() -> None:
    book, _ = make(4)
    book.assign("a", 0, 100)
    counts = [0] * 4
    for _ in range(3000):
        (slot,) = book.first(0b1111, 1)
        counts[slot] += 1
        book.assign("b", slot, 1)
        book.settle("b", None)
    assert counts[0] == 0
    assert max(counts[1:]) < 1.2 * min(counts[1:])
    assert book.first(0b1111, 4)[-1] == 0
    assert book.first(0b0001, 3) == [0]
    assert book.first(0, 3) == []
    assert book.least(0) is None


def test_recent_work_fades_by_half_lives_and_is_not_given_back() -> None:
    book, clock = make(1)
    book.assign("a", 0, 60)
    book.settle("a", None)
    assert idle(book, 0)
    start = book.recent(0)
    assert start == 64
    clock.now += RECENT_S
    book.expire()
    assert book.recent(0) == start / 2
    book.drop_replica(0)
    assert book.recent(0) == 0
    book.check_integrity()


def test_what_answers_hold_crowds_until_they_end_and_not_only_until_their_first_token() -> None:
    book, _ = make(2)
    book.room = 1000
    for name in ("a", "b"):
        book.assign(name, 0, 400, 400)
        book.settle(name, 0)
        book.first_token(name, 0)
    assert book.units(0) == 2 * book.request_units
    assert book.weight(0) > book.units(0) + 100
    book.assign("c", 1, 40, 40)
    assert book.first(0b11, 2) == [1, 0]
    for name in ("a", "b"):
        book.release(name, 0)
    assert book.weight(0) == 0
    book.check_integrity()


def test_crowding_is_nearly_nothing_far_below_an_engines_room() -> None:
    weights = []
    for room in (100_000, 2_000, 200):
        book, _ = make(1)
        book.room = room
        book.assign("a", 0, 0, 1000)
        weights.append(book.weight(0) - book.units(0))
    assert weights == sorted(weights)
    assert weights[0] == 0
    assert weights[2] > 1000


def test_without_a_known_room_the_most_that_was_ever_held_stands_in_for_it() -> None:
    book, _ = make(2)
    book.assign("a", 0, 0, 500)
    quiet = book.weight(0)
    book.assign("b", 1, 0, 20_000)
    book.assign("a", 0, 0, 500)
    assert book.weight(0) < quiet
    assert book.weight(1) > 1000


def test_a_replica_is_loading_until_the_last_that_loads_there_has_its_first_token_or_ends() -> None:
    book, _ = make(3)
    for name in ("a", "b", "c"):
        book.assign(name, 0, 10, loads=True)
    book.assign("d", 1, 10)
    assert book.loading == 0b001
    book.settle("a", 2)
    assert book.loading == 0b101
    book.settle("b", 0)
    book.first_token("b", 0)
    book.first_token("b", 0)
    assert book.loading == 0b101
    book.settle("c", None)
    assert book.loading == 0b100
    book.check_integrity()
    book.release("a", 2)
    book.release("b", 0)
    assert book.loading == 0
    book.assign("e", 1, 10, loads=True)
    book.drop_replica(1)
    assert book.loading == 0
    book.check_integrity()
