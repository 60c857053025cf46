"""session: sticky, balanced, agreed on by routers that never talk, and bounded in load."""

from collections import Counter

from tests.routing.conftest import Fleet

BODY = {"model": "m", "prompt": "hello"}


def test_a_session_stays_and_sessions_spread() -> None:
    fleet = Fleet("session", 8)
    homes = {key: fleet.serve(BODY, key) for key in (f"s{number}" for number in range(400))}
    assert all(fleet.serve(BODY, key) == home for key, home in homes.items())
    assert len(set(homes.values())) == 8
    assert max(Counter(homes.values()).values()) < 100


def test_two_routers_agree_without_talking() -> None:
    one, other = Fleet("session", 8), Fleet("session", 8)
    other.names.reverse()
    other = Fleet("session", 8)
    assert all(one.serve(BODY, f"s{n}") == other.serve(BODY, f"s{n}") for n in range(100))


def test_a_departure_moves_only_the_sessions_of_the_departed() -> None:
    fleet = Fleet("session", 8)
    before = {f"s{n}": fleet.serve(BODY, f"s{n}") for n in range(200)}
    fleet.core.replica_died("r3")
    after = {key: fleet.serve(BODY, key) for key in before}
    assert all(after[key] == home for key, home in before.items() if home != "r3")
    assert "r3" not in after.values()


def test_load_is_bounded_and_the_displaced_session_comes_home() -> None:
    fleet = Fleet("session", 4)
    home = fleet.serve(BODY, "busy")
    sent = [fleet.send(BODY, "busy") for _ in range(40)]
    counts = Counter(replica for _, replica in sent)
    assert max(counts.values()) <= 1.25 * 41 / 4 + 3
    for name, replica in sent:
        fleet.core.ended(name, replica)
    assert fleet.serve(BODY, "busy") == home
    fleet.core.check_integrity()


def test_without_a_key_load_decides() -> None:
    fleet = Fleet("session", 4)
    _, ranking = fleet.choose(BODY)
    assert (ranking.reason, ranking.degraded) == ("load", "no session key")
    assert len({fleet.send(BODY)[1] for _ in range(3)}) == 3


def test_tenants_with_the_same_session_name_are_apart() -> None:
    fleet = Fleet("session", 16)
    homes = {fleet.serve({**BODY, "cache_salt": f"t{n}"}, "default") for n in range(40)}
    assert len(homes) > 8
