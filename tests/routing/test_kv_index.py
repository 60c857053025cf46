"""The L0 index against vLLM's real encoder and block hashes, and against a naive model of a fleet of caches."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.routing.kv_events import AllBlocksCleared, Batch, BlockRemoved, BlockStored, Event, decode_batch
from app.routing.kv_index import EngineIndex
from app.routing.kv_keys import pack

SIZE = 4


def stored(tokens: list[int], upto: int, start: int = 0, salt: str = "", lora: str | None = None) -> BlockStored:
    """Blocks start..upto of a prompt, with hashes that another salt or adapter changes, as an engine announces them."""
    names = [f"{salt}|{lora}|{tokens[: SIZE * (at + 1)]}".encode() for at in range(upto)]
    head = [lora] if lora else []
    extra: list[list[Any] | None] = [(head + ([salt] if salt and not at else [])) or None for at in range(upto)]
    return BlockStored(
        block_hashes=list(names[start:]),
        parent_block_hash=names[start - 1] if start else None,
        token_ids=tokens[start * SIZE : upto * SIZE],
        block_size=SIZE,
        medium="GPU",
        lora_name=lora,
        extra_keys=extra[start:],
    )


def removed(event: BlockStored, blocks: slice) -> BlockRemoved:
    return BlockRemoved(block_hashes=event.block_hashes[blocks], medium="GPU")


class Feed:
    """One engine's publisher."""

    def __init__(self, index: EngineIndex, slot: int) -> None:
        self.index, self.slot, self.seq = index, slot, 0

    def send(self, *events: Event) -> int | None:
        answer = self.index.apply(self.slot, self.seq, Batch(float(self.seq), list(events)))
        self.seq += 1
        self.index.check_integrity()
        return answer


def held(index: EngineIndex, tokens: list[int], adapter: str = "", salt: str = "", replicas: int = 8) -> dict[int, int]:
    found: dict[int, int] = {}
    for run in index.match(pack(tokens), adapter, salt, (1 << replicas) - 1):
        for slot in range(replicas):
            if run.replicas >> slot & 1:
                found[slot] = run.tokens
    return found


TOKENS = list(range(100, 140))


def test_a_prefix_is_found_as_far_as_it_is_held() -> None:
    index = EngineIndex()
    Feed(index, 0).send(stored(TOKENS, 3))
    Feed(index, 1).send(stored(TOKENS, 7))
    assert held(index, TOKENS) == {0: 12, 1: 28}
    assert held(index, [*TOKENS[:8], 1, 2, 3, 4]) == {0: 8, 1: 8}
    assert held(index, [9, *TOKENS]) == {}
    assert held(index, TOKENS[:3]) == {}


def test_later_blocks_inherit_salt_and_adapter_from_their_parents() -> None:
    index = EngineIndex()
    feed = Feed(index, 0)
    feed.send(stored(TOKENS, 2, salt="s"))
    feed.send(stored(TOKENS, 5, start=2, salt="s"))
    feed.send(stored(TOKENS, 1, lora="m:a"))
    assert held(index, TOKENS, salt="s") == {0: 20}
    assert held(index, TOKENS, adapter="m:a") == {0: 4}
    assert held(index, TOKENS) == {}
    assert held(index, TOKENS, salt="other") == {}


def test_removal_clearing_and_repetition() -> None:
    index = EngineIndex()
    feed = Feed(index, 0)
    event = stored(TOKENS, 6)
    feed.send(event, event)
    feed.send(removed(event, slice(4, None)))
    assert held(index, TOKENS) == {0: 16}
    feed.send(removed(event, slice(0, 1)))
    assert held(index, TOKENS) == {}
    feed.send(stored(TOKENS, 1))
    assert held(index, TOKENS) == {0: 16}
    feed.send(AllBlocksCleared())
    assert held(index, TOKENS) == {}
    assert index.blocks == 0


def test_other_media_groups_and_places_do_not_count_as_l0() -> None:
    index = EngineIndex()
    feed = Feed(index, 0)
    base = stored(TOKENS, 3)
    feed.send(msgspec.structs.replace(base, medium="CPU"))
    feed.send(msgspec.structs.replace(base, locality="REMOTE"))
    feed.send(msgspec.structs.replace(base, group_idx=1))
    assert held(index, TOKENS) == {}


def test_an_image_in_a_block_hides_it_and_what_follows_from_text() -> None:
    index = EngineIndex()
    event = stored(TOKENS, 3)
    extra = [None, [["image-hash", 2]], None]
    Feed(index, 0).send(msgspec.structs.replace(event, extra_keys=extra))
    assert held(index, TOKENS) == {0: 4}


def test_blocks_without_a_known_parent_are_left_out_and_counted() -> None:
    index = EngineIndex()
    Feed(index, 0).send(stored(TOKENS, 5, start=2))
    assert held(index, TOKENS) == {}
    assert index.status()["l0_orphans"] == 3


def test_memory_is_bounded_by_refusing() -> None:
    index = EngineIndex(max_blocks=5)
    feed = Feed(index, 0)
    feed.send(stored(TOKENS, 8))
    assert held(index, TOKENS) == {0: 20}
    assert index.status()["l0_refused"] == 3
    feed.send(AllBlocksCleared())
    feed.send(stored(list(range(40)), 2))
    assert held(index, list(range(40))) == {0: 8}


def test_a_lost_message_is_asked_for_and_a_lost_removal_is_never_believed() -> None:
    index = EngineIndex()
    event = stored(TOKENS, 6)
    assert index.apply(0, 0, Batch(0.0, [event])) is None
    later = Batch(2.0, [stored(list(range(8)), 2)])
    assert index.apply(0, 2, later) == 0
    index.apply(0, 0, Batch(0.0, [event]), replayed=True)
    index.apply(0, 1, Batch(1.0, [removed(event, slice(2, None))]), replayed=True)
    index.replay_ended(0)
    assert held(index, TOKENS) == {0: 8}
    assert held(index, list(range(8))) == {0: 8}
    # The same with nobody answering: what may have been removed is forgotten.
    assert index.apply(0, 9, Batch(9.0, [stored([7] * 8, 2)])) == 2
    index.replay_ended(0)
    assert held(index, TOKENS) == {}
    assert held(index, [7] * 8) == {0: 8}
    assert index.status()["l0_incomplete"] == 1


def test_a_late_router_rebuilds_and_a_restarted_engine_starts_empty() -> None:
    index = EngineIndex()
    assert index.apply(0, 3, Batch(3.0, [stored(TOKENS, 5, start=2)])) == 0
    for seq, events in enumerate([[stored(TOKENS, 2)], [], []]):
        index.apply(0, seq, Batch(float(seq), list(events)), replayed=True)
    index.replay_ended(0)
    assert held(index, TOKENS) == {0: 20}
    assert index.apply(0, 0, Batch(100.0, [stored([5] * 8, 1)])) is None
    assert held(index, TOKENS) == {}
    assert held(index, [5] * 8) == {0: 4}


def test_an_unreadable_message_counts_as_lost() -> None:
    index = EngineIndex()
    feed = Feed(index, 0)
    feed.send(stored(TOKENS, 2))
    assert decode_batch(b"nonsense") is None
    index.apply(0, 1, None)
    assert index.apply(0, 2, Batch(2.0, [])) == 0
    index.apply(0, 0, Batch(0.0, [stored(TOKENS, 2)]), replayed=True)
    index.apply(0, 1, None, replayed=True)
    assert held(index, TOKENS) == {}, "it might have said that they were removed"
    index.check_integrity()


def test_replicas_whose_events_were_never_seen_are_not_known() -> None:
    index = EngineIndex()
    Feed(index, 2).send()
    assert index.known(0b111) == 0b100
    index.drop(2)
    assert index.known(0b111) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 6), st.integers(0, 9)), max_size=60))
@settings(max_examples=150)
def test_it_agrees_with_a_naive_model(script: list[tuple[int, int, int, int]]) -> None:
    """Caches that store prompts, evict tails and clear, at random: runs are exactly the longest held beginnings."""
    index = EngineIndex()
    feeds = [Feed(index, slot) for slot in range(4)]
    caches: list[dict[int | bytes, tuple[int, ...]]] = [{} for _ in range(4)]
    for slot, prompt, blocks, what in script:
        tokens = [prompt] * SIZE + list(range(prompt % 2, 30))
        event = stored(tokens, blocks)
        cache = caches[slot]
        if what == 0:
            feeds[slot].send(AllBlocksCleared())
            cache.clear()
        elif what < 4:
            tail = [name for name in event.block_hashes if name in cache][-2:]
            feeds[slot].send(BlockRemoved(block_hashes=list(tail), medium="GPU"))
            for gone in tail:
                del cache[gone]
        else:
            feeds[slot].send(event)
            for at, name in enumerate(event.block_hashes):
                cache[name] = tuple(tokens[: (at + 1) * SIZE])
        expected = {}
        for one, contents in enumerate(caches):
            run = 0
            while tuple(tokens[: (run + 1) * SIZE]) in contents.values() and (run + 1) * SIZE <= len(tokens):
                run += 1
            if run:
                expected[one] = run * SIZE
        assert held(index, tokens, replicas=4) == expected


class TestAgainstVllm:
    """The wire format and the meaning of its fields, from vLLM itself: fails when an upgrade moves them."""

    def encode(self, *events: Any) -> bytes:
        kv = pytest.importorskip("vllm.distributed.kv_events")
        return bytes(msgspec.msgpack.encode(kv.KVEventBatch(ts=1.5, events=list(events), data_parallel_rank=0)))

    def test_every_event_survives_the_wire(self) -> None:
        kv = pytest.importorskip("vllm.distributed.kv_events")
        batch = decode_batch(
            self.encode(
                kv.BlockStored(
                    block_hashes=[2**63 + 5, b"hash"],
                    parent_block_hash=None,
                    token_ids=[1, 2, 3, 4],
                    block_size=2,
                    lora_id=None,
                    medium="GPU",
                    lora_name="m:a",
                    extra_keys=[("m:a", ("image", 3), "salt"), None],
                    group_idx=0,
                    kv_cache_spec_kind="full_attention",
                ),
                kv.BlockRemoved(block_hashes=[1], medium="GPU"),
                kv.AllBlocksCleared(),
            )
        )
        assert batch is not None
        first, second, third = batch.events
        assert isinstance(first, BlockStored)
        assert (first.block_hashes, first.extra_keys) == ([2**63 + 5, b"hash"], [["m:a", ["image", 3], "salt"], None])
        assert isinstance(second, BlockRemoved)
        assert isinstance(third, AllBlocksCleared)
        assert (batch.ts, batch.data_parallel_rank) == (1.5, 0)

    def test_a_later_versions_field_and_a_strange_event(self) -> None:
        stored_map: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": [1],
            "parent_block_hash": None,
            "token_ids": [1, 2],
        }
        stored_map |= {"block_size": 2, "session_id": "new in 0.32"}
        assert decode_batch(msgspec.msgpack.encode([0.5, [stored_map]])) is not None
        assert decode_batch(msgspec.msgpack.encode([0.5, [{"type": "Unheard"}]])) is None

    def test_a_real_block_pools_events_build_an_index_that_finds_the_prompt(self) -> None:
        """vLLM's own block pool announces a salted request's blocks; a request with the same salt and tokens finds
        them.
        """
        utils = pytest.importorskip("vllm.v1.core.kv_cache_utils")
        pool_module = pytest.importorskip("vllm.v1.core.block_pool")
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.request import Request

        utils.init_none_hash(sha256)
        hasher = utils.get_request_block_hasher(16, sha256)
        tokens = [random.Random(3).randrange(1000) for _ in range(80)]
        request = Request(
            request_id="r",
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            cache_salt="tenant",
            block_hasher=hasher,
        )
        pool = pool_module.BlockPool(16, True, 16, enable_kv_cache_events=True)
        blocks = pool.get_new_blocks(5)
        pool.cache_full_blocks(request, blocks, 0, 2, 16, 0)
        pool.cache_full_blocks(request, blocks, 2, 5, 16, 0)
        index = EngineIndex()
        batch = decode_batch(self.encode(*pool.take_events()))
        assert index.apply(0, 0, batch) is None
        assert held(index, tokens, salt="tenant") == {0: 80}
        assert held(index, tokens) == {}
        pool.free_blocks(blocks)
        assert pool.reset_prefix_cache()
        index.apply(0, 1, decode_batch(self.encode(*pool.take_events())))
        assert held(index, tokens, salt="tenant") == {}
