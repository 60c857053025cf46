"""Who holds which chunk in L1 and L2, with owners that come, go, restart and fall behind."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing.kv_keys import chunk_keys, pack
from app.routing.tier_index import Removed, Scope, Stored, TierBatch, TierIndex

SCOPE = Scope("m", "tenant")
CHUNKS = [bytes([at]) * 32 for at in range(8)]


def batch(owner: str, seq: int, *events: Stored | Removed, life: str = "a", snapshot: bool = False) -> TierBatch:
    return TierBatch(owner, life, seq, float(seq), events, snapshot)


def test_runs_are_contiguous_from_the_first_chunk() -> None:
    index = TierIndex()
    index.apply(batch("n0", 0, Stored(SCOPE, CHUNKS[:5])))
    index.apply(batch("n1", 0, Stored(SCOPE, [CHUNKS[0], CHUNKS[2]])))
    index.apply(batch("n2", 0, Stored(SCOPE, CHUNKS[1:])))
    index.check_integrity()
    assert index.runs(SCOPE, CHUNKS) == {"n0": 5, "n1": 1}
    index.apply(batch("n0", 1, Removed(SCOPE, CHUNKS[3:4])))
    assert index.runs(SCOPE, CHUNKS) == {"n0": 3, "n1": 1}


def test_models_and_tenants_are_apart() -> None:
    index = TierIndex()
    index.apply(batch("n0", 0, Stored(SCOPE, CHUNKS)))
    assert index.runs(Scope("m"), CHUNKS) == {}
    assert index.runs(Scope("other", "tenant"), CHUNKS) == {}


def test_a_pool_reaches_on_from_where_a_node_ends() -> None:
    index = TierIndex()
    index.apply(batch("pool", 0, Stored(SCOPE, CHUNKS[2:6])))
    assert index.reach(SCOPE, CHUNKS) == [0, 1, 6, 6, 6, 6, 6, 7, 8]


def test_a_new_incarnation_starts_empty_and_a_snapshot_replaces() -> None:
    index = TierIndex()
    index.apply(batch("n0", 0, Stored(SCOPE, CHUNKS)))
    index.apply(batch("n0", 0, Stored(SCOPE, CHUNKS[:2]), life="b"))
    assert index.runs(SCOPE, CHUNKS) == {"n0": 2}
    index.apply(batch("n0", 77, Stored(SCOPE, CHUNKS[:4]), life="b", snapshot=True))
    assert index.runs(SCOPE, CHUNKS) == {"n0": 4}
    assert index.apply(batch("n0", 78, Removed(SCOPE, CHUNKS[1:2]), life="b")) is None
    assert index.runs(SCOPE, CHUNKS) == {"n0": 1}
    index.check_integrity()


def test_a_late_listener_asks_and_a_lost_removal_is_not_believed() -> None:
    index = TierIndex()
    assert index.apply(batch("n0", 4, Stored(SCOPE, CHUNKS[:1]))) == 0
    index.replay_ended("n0")
    assert index.runs(SCOPE, CHUNKS) == {"n0": 1}
    assert index.apply(batch("n0", 9, Stored(SCOPE, CHUNKS[1:2]))) == 4
    index.replay_ended("n0")
    assert index.runs(SCOPE, CHUNKS) == {}
    assert index.status("l1")["l1_incomplete"] == 1


def test_memory_is_bounded_by_refusing() -> None:
    index = TierIndex(max_chunks=3)
    index.apply(batch("n0", 0, Stored(SCOPE, CHUNKS)))
    index.check_integrity()
    assert (index.chunks, index.refused) == (3, 5)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.sets(st.integers(0, 7))), max_size=40))
def test_it_agrees_with_sets(script: list[tuple[int, bool, set[int]]]) -> None:
    index, model, seqs = TierIndex(), [set[int](), set[int](), set[int]()], [0, 0, 0]
    for owner, store, which in script:
        chunks = [CHUNKS[at] for at in sorted(which)]
        event = Stored(SCOPE, chunks) if store else Removed(SCOPE, chunks)
        index.apply(batch(f"n{owner}", seqs[owner], event))
        seqs[owner] += 1
        model[owner] = model[owner] | which if store else model[owner] - which
        index.check_integrity()
        expected = {}
        for number, chunks_held in enumerate(model):
            run = next(at for at in range(9) if at not in chunks_held)
            if run:
                expected[f"n{number}"] = run
        assert index.runs(SCOPE, CHUNKS) == expected


def test_chunk_names_are_lmcaches_own() -> None:
    hasher = pytest.importorskip("lmcache.v1.multiprocess.token_hasher").TokenHasher(64, "blake3")
    tokens = [random.Random(1).randrange(50_000) for _ in range(64 * 3 + 10)]
    expected, parent = [], None
    for start in range(0, 64 * 3, 64):
        parent = hasher.hash_tokens(tokens[start : start + 64], parent)
        expected.append(parent)
    assert chunk_keys(pack(tokens), 64) == expected
