"""The radix tree against a naive model, its bounds, and its behaviour when replicas go."""

import random
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.routing.prefix_tree import PrefixTree
from app.routing.prompt import chain
from app.routing.roster import Roster, slots_of


def make(replicas: int = 8, max_bytes: int = 64 << 20) -> tuple[PrefixTree, Roster]:
    roster = Roster()
    for number in range(replicas):
        roster.add(f"r{number}")
    return PrefixTree(roster, max_bytes), roster


def pieces(text: str) -> list[int]:
    """One piece per letter, chained like real ones."""
    return chain(text.encode(), 1, piece_bytes=1)


def holders(tree: PrefixTree, prompt: Sequence[int]) -> list[set[int]]:
    """For each piece of the prompt, who holds it: what a match says, spelled out."""
    found: list[set[int]] = []
    for level in tree.match(prompt, 0.0):
        found += [set(slots_of(level.holders))] * (level.depth - len(found))
    return found


class Naive:
    """Every prefix of everything inserted, in a dictionary."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, ...], set[int]] = {}

    def insert(self, prompt: Sequence[int], slot: int) -> None:
        for end in range(1, len(prompt) + 1):
            self.held.setdefault(tuple(prompt[:end]), set()).add(slot)

    def drop(self, slot: int) -> None:
        for who in self.held.values():
            who.discard(slot)

    def holders(self, prompt: Sequence[int]) -> list[set[int]]:
        found = []
        for end in range(1, len(prompt) + 1):
            who = self.held.get(tuple(prompt[:end]), set())
            if not who:
                break
            found.append(set(who))
        return found


words = st.text(alphabet="ab", max_size=9)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), words, st.integers(0, 4)),
        st.tuples(st.just("match"), words, st.just(0)),
        st.tuples(st.just("drop"), st.just(""), st.integers(0, 4)),
    ),
    max_size=60,
)


@given(steps)
@settings(max_examples=300)
def test_it_answers_like_the_naive_model(script: list[tuple[str, str, int]]) -> None:
    tree, roster = make(5)
    naive = Naive()
    for what, word, number in script:
        prompt, slot = pieces(word), roster.slot(f"r{number}")
        if what == "insert" and slot is not None:
            tree.insert(prompt, slot, 0.0)
            naive.insert(prompt, slot)
        elif what == "match":
            assert holders(tree, prompt) == naive.holders(prompt)
        elif what == "drop" and slot is not None:
            roster.remove(f"r{number}")
            naive.drop(slot)
        tree.check_integrity()
        for known in list(naive.held)[-3:]:
            assert holders(tree, known) == naive.holders(known)


@given(st.lists(st.tuples(words, st.integers(0, 3), st.integers(0, 9)), max_size=40))
def test_forgetting_cuts_exactly_that_prompt_below_the_depth(script: list[tuple[str, int, int]]) -> None:
    tree, _ = make(4)
    for word, slot, depth in script:
        prompt = pieces(word)
        tree.insert(prompt, slot, 0.0)
        before = holders(tree, prompt)
        tree.forget(prompt, slot, depth)
        tree.check_integrity()
        after = holders(tree, prompt)
        for at, who in enumerate(before):
            expected = who if at < depth else who - {slot}
            assert (after[at] if at < len(after) else set()) == expected


@given(st.lists(st.tuples(words, st.integers(0, 3)), max_size=80), st.integers(700, 9000))
def test_memory_stays_within_its_bound_and_the_least_recently_used_goes_first(
    script: list[tuple[str, int]], bound: int
) -> None:
    tree, _ = make(4, bound)
    for word, slot in script:
        prompt = pieces(word)
        tree.insert(prompt, slot, 0.0)
        tree.check_integrity()
        if word and tree.bytes + 2000 < bound:
            assert len(holders(tree, prompt)) == len(prompt), "what was just inserted is gone although there is room"


def test_least_recently_used_leaves_leave_first() -> None:
    tree, _ = make(1, 6 * 700)
    words_ = ["aa", "bb", "cc", "dd", "ee", "ff"]
    for word in words_:
        tree.insert(pieces(word), 0, 0.0)
    for word in ("aa", "cc"):
        tree.insert(pieces(word), 0, 0.0)
    for word in ("gg", "hh"):
        tree.insert(pieces(word), 0, 0.0)
    kept = {word for word in [*words_, "gg", "hh"] if holders(tree, pieces(word))}
    assert {"aa", "cc", "gg", "hh"} <= kept
    assert not kept & {"bb", "dd"}


def test_a_replica_that_went_is_never_matched_and_its_slot_starts_clean() -> None:
    tree, roster = make(1)
    prompt = pieces("abcdef")
    tree.insert(prompt, 0, 0.0)
    roster.remove("r0")
    assert tree.match(prompt, 0.0) == []
    for number in range(200):
        roster.add(f"n{number}")
        assert tree.match(prompt, 0.0) == []
        roster.remove(f"n{number}")
    tree.check_integrity()


def test_heat_decays_by_half_lives() -> None:
    tree, _ = make()
    for _ in range(4):
        tree.insert(pieces("abc"), 0, 0.0)
    assert tree.match(pieces("abc"), 0.0)[0].heat == 4.0
    assert tree.match(pieces("abc"), 60.0)[0].heat == pytest.approx(2.0)
    assert tree.match(pieces("abc"), 6000.0)[0].heat < 0.001


@given(st.lists(words, max_size=30), words)
@settings(max_examples=300)
def test_a_step_forks_where_another_prompt_goes_on_otherwise(inserted: list[str], asked: str) -> None:
    tree, _ = make(1)
    for text in inserted:
        tree.insert(pieces(text), 0, 0.0)
    for level in tree.match(pieces(asked), 0.0):
        at = level.depth
        others = {text[at] for text in inserted if text[:at] == asked[:at] and len(text) > at}
        assert level.forks == bool(at < len(asked) and others - {asked[at]})


def test_a_prompt_of_a_million_pieces_needs_no_recursion() -> None:
    tree, _ = make()
    prompt = list(range(1, 1_000_000))
    tree.insert(prompt, 0, 0.0)
    for cut in (10, 1000, 500_000):
        tree.insert([*prompt[:cut], -cut % (1 << 64)], 1, 0.0)
    assert len(holders(tree, prompt)) == len(prompt)
    tree.check_integrity()


def best(action: Callable[[], object], rounds: int = 5) -> float:
    def once() -> float:
        started = time.perf_counter()
        action()
        return time.perf_counter() - started

    return min(once() for _ in range(rounds))


def test_the_fleet_size_hardly_matters() -> None:
    """A thousand replicas cost at most three times what sixty cost (measured: 1.1), so nothing loops over replicas."""
    rng = random.Random(1)
    prompts = [chain(rng.randbytes(8000), 1) for _ in range(300)]

    def work(tree: PrefixTree, replicas: int) -> None:
        for at, prompt in enumerate(prompts):
            tree.match(prompt, 0.0)
            tree.insert(prompt, at % replicas, 0.0)

    small, large = make(64)[0], make(1024)[0]
    work(small, 64)
    work(large, 1024)
    assert best(lambda: work(large, 1024)) < 3 * best(lambda: work(small, 64))


@given(st.lists(st.tuples(words, st.integers(0, 3)), max_size=30), words, st.integers(0, 3), st.integers(-1, 30))
@settings(max_examples=300)
def test_inserting_says_what_was_held_the_deepest_step_of_a_match_that_was_used_since(
    inserts: list[tuple[str, int]], asked: str, slot: int, after: int
) -> None:
    tree, _ = make(4)
    for text, holder in inserts:
        tree.insert(pieces(text), holder, 0.0)
    levels = [
        (level.depth, level.last_use)
        for level in tree.match(pieces(asked), 0.0)
        if level.holders >> slot & 1 and level.last_use > after
    ]
    assert tree.insert(pieces(asked), slot, 0.0, after) == (levels[-1] if levels else None)
