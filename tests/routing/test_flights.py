"""Prompts in flight, by who has how much of a prompt."""

from hypothesis import given
from hypothesis import strategies as st

from app.routing.flights import Flights

EVERYONE = 0b1111


def test_it_says_who_has_how_much_of_a_prompt() -> None:
    flights = Flights()
    flights.start(0, "a", [1, 2, 3])
    flights.start(1, "b", [1, 2, 9, 8])
    flights.start(2, "c", [7])
    assert flights.runs([1, 2, 3, 4], EVERYONE) == [(2, 0b0010), (3, 0b0001)]
    assert flights.runs([1, 2], EVERYONE) == [(2, 0b0011)]
    assert flights.runs([1, 2], 0b0010) == [(2, 0b0010)]
    assert flights.runs([5], EVERYONE) == flights.runs([], EVERYONE) == []


def test_a_shared_beginning_stays_until_the_last_of_them_has_landed() -> None:
    flights = Flights()
    for name in ("a", "b", "c"):
        flights.start(0, name, [1, 2, hash(name)])
    flights.land(0, "a")
    flights.land(0, "b")
    assert flights.runs([1, 2], EVERYONE) == [(2, 1)]
    flights.land(0, "c")
    assert not flights
    flights.check_integrity()


def test_one_whose_end_is_never_heard_of_is_forgotten_in_time() -> None:
    flights = Flights()
    for number in range(1000):
        flights.start(0, str(number), [number])
    assert flights.runs([0], EVERYONE) == []
    assert flights.runs([999], EVERYONE) == [(1, 1)]
    flights.check_integrity()


EVENTS = st.lists(
    st.tuples(st.sampled_from(["start", "land", "drop"]), st.integers(0, 3), st.integers(0, 5), st.integers(0, 6)),
    max_size=60,
)


@given(EVENTS)
def test_masks_say_what_a_list_of_all_flights_says(events: list[tuple[str, int, int, int]]) -> None:
    """Prompts are beginnings of one sequence, each with an end of its own."""
    flights, known = Flights(), dict[tuple[int, str], list[int]]()
    for what, slot, request, depth in events:
        names = [*range(depth), 100 + request]
        if what == "start":
            flights.start(slot, str(request), names)
            known[slot, str(request)] = names
        elif what == "land":
            flights.land(slot, str(request))
            known.pop((slot, str(request)), None)
        else:
            flights.drop(slot)
            known = {key: value for key, value in known.items() if key[0] != slot}
    flights.check_integrity()
    asked = list(range(8))
    most: dict[int, int] = {}
    for (slot, _), names in known.items():
        most[slot] = max(most.get(slot, 0), len(names) - 1)
    found = {slot: pieces for pieces, slots in flights.runs(asked, EVERYONE) for slot in range(4) if slots >> slot & 1}
    assert found == {slot: pieces for slot, pieces in most.items() if pieces}
