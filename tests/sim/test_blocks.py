"""L0's blocks: vLLM's order of eviction, sharing, and the published figures that paging is known by."""

import random

from hypothesis import given
from hypothesis import strategies as st

from app.sim.blocks import BlockPool, Table


def filled(pool: BlockPool, names: list[int]) -> Table:
    table = pool.allocate(names[: pool.hit(names)], len(names) * pool.block_tokens)
    assert table is not None
    pool.name(table, 0, names)
    return table


def test_unnamed_blocks_go_first_then_the_oldest_prompt_from_its_end() -> None:
    pool = BlockPool(6, 16)
    first, second = filled(pool, [1, 2]), filled(pool, [11, 12])
    blank = pool.allocate([], 32)
    assert blank is not None
    for table in (first, second, blank):
        pool.free(table)
    assert pool.allocate([], 32) is not None
    assert pool.evicted == []
    assert pool.allocate([], 48) is not None
    assert pool.evicted == [2, 1, 12]
    pool.check_integrity()


def test_a_hit_is_as_good_as_new() -> None:
    pool = BlockPool(4, 16)
    pool.free(filled(pool, [1, 2]))
    pool.free(filled(pool, [11, 12]))
    pool.free(filled(pool, [1, 2]))
    assert pool.allocate([], 32) is not None
    assert pool.evicted == [12, 11]
    assert pool.hit([1, 2]) == 2


def test_no_room_is_an_answer_and_changes_nothing() -> None:
    pool = BlockPool(3, 16)
    pool.free(filled(pool, [1, 2]))
    assert pool.allocate([1, 2], 64) is None
    assert (pool.free_blocks, pool.hit([1, 2])) == (3, 2)
    pool.check_integrity()


def test_best_of_8_on_a_prompt_of_2000_tokens_needs_2800_block_tokens_instead_of_16800() -> None:
    # Blocks of 20 tokens divide both lengths, so that only sharing is measured and not rounding.
    shared = BlockPool(1000, 20)
    prompt = shared.allocate([], 2000)
    assert prompt is not None
    samples = [prompt, *(shared.fork(prompt) for _ in range(7))]
    assert all(shared.grow(sample, 100) for sample in samples)
    assert shared.used_slots == 2800

    apart = BlockPool(1000, 20)
    assert all(apart.allocate([], 2100) is not None for _ in range(8))
    assert apart.used_slots == 16_800


def test_best_of_8_in_blocks_of_16_copies_the_shared_last_block_only() -> None:
    pool = BlockPool(1000, 16)
    prompt = pool.allocate([], 2008)
    assert prompt is not None
    samples = [prompt, *(pool.fork(prompt) for _ in range(7))]
    assert all(pool.grow(sample, 100) for sample in samples)
    # 125 full blocks together; then each sample has its own copy of the half full one and six more.
    assert pool.used_blocks == 125 + 8 * 7
    assert len({sample.blocks[125] for sample in samples}) == 8
    pool.check_integrity()


def wasted(block_tokens: int, lengths: list[int]) -> float:
    """The share of memory in use that holds no token."""
    pool = BlockPool(sum(-(-length // block_tokens) for length in lengths), block_tokens)
    assert all(pool.allocate([], length) is not None for length in lengths)
    return 1 - sum(lengths) / pool.used_slots


def test_blocks_of_16_cut_fragmentation_from_60_to_80_per_cent_to_about_4() -> None:
    # Chats of 200 tokens on average. Reserving a maximum length ahead is a block of that length.
    rng = random.Random(1)
    lengths = [1 + int(rng.gammavariate(4, 50)) for _ in range(2000)]
    lengths = [min(length, 512) for length in lengths]
    assert 0.59 < wasted(512, lengths) < 0.66
    assert 0.77 < wasted(1024, lengths) < 0.83
    assert 0.03 < wasted(16, lengths) < 0.05


@given(st.lists(st.tuples(st.sampled_from("ofgx"), st.integers(0, 7), st.integers(1, 90)), max_size=60))
def test_any_sequence_of_steps_keeps_every_block_in_one_place(steps: list[tuple[str, int, int]]) -> None:
    pool = BlockPool(24, 16)
    tables: list[Table] = []
    for kind, which, tokens in steps:
        if kind == "o":
            names = [which * 100 + at for at in range(tokens // 16)]
            table = pool.allocate(names[: pool.hit(names)], tokens)
            if table is not None:
                pool.name(table, 0, names)
                tables.append(table)
        elif tables and kind == "f":
            tables.append(pool.fork(tables[which % len(tables)]))
        elif tables and kind == "g":
            pool.grow(tables[which % len(tables)], tokens)
        elif tables:
            pool.free(tables.pop(which % len(tables)))
        pool.check_integrity()
    held = {block for table in tables for block in table.blocks}
    assert len(held) == pool.used_blocks
