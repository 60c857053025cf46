"""Published hit rates by kind of work, reproduced on the block manager; and that mixes are what they say."""

import pytest

from app.sim.blocks import BlockPool
from app.sim.mixes import AGENT, Chat, Mix, Rag, mixed
from app.sim.workload import Job, totals


def hits(jobs: list[Job], pool: BlockPool, first: int, last: int) -> float:
    """What one engine's blocks have of the tokens from `first` to `last` of each prompt."""
    hit = wanted = 0
    block = pool.block_tokens
    for job in jobs:
        full = job.names[: job.tokens // block]
        held = pool.hit(full)
        end = min(last, job.tokens)
        hit += max(0, min(end, held * block) - first)
        wanted += end - first
        table = pool.allocate(full[:held], job.tokens + job.output)
        assert table is not None
        pool.name(table, 0, full)
        pool.free(table)
    return hit / wanted


def jobs_of(mix: Mix, requests: int) -> list[Job]:
    return list(mixed("m", mix, requests, block=16).jobs())


def test_a_chats_system_prompt_is_hit_over_99_per_cent() -> None:
    assert hits(jobs_of(Chat(), 1000), BlockPool(2000, 16), 0, 2048) > 0.99


def test_rag_hits_30_to_60_per_cent() -> None:
    # An engine that has room for a tenth of 2,000 documents: popular ones stay.
    assert 0.3 < hits(jobs_of(Rag(), 3000), BlockPool(25_600, 16), 0, 1 << 30) < 0.6


def test_an_agents_scaffold_is_hit_nearly_always() -> None:
    assert hits(jobs_of(AGENT, 1000), BlockPool(4000, 16), 0, 8192) > 0.995


@pytest.mark.parametrize("mix", [Chat(), Rag(), AGENT], ids=["chat", "rag", "agent"])
def test_a_mix_repeats_exactly_arrives_in_order_and_covers_its_prompts(mix: Mix) -> None:
    workload = mixed("m", mix, 300, rate=5.0, seed=3)
    jobs = list(workload.jobs())
    assert jobs == list(workload.jobs())
    assert jobs != list(mixed("m", mix, 300, rate=5.0, seed=4).jobs())
    assert [job.at for job in jobs] == sorted(job.at for job in jobs)
    assert all((len(job.names) - 1) * 64 < job.tokens <= len(job.names) * 64 for job in jobs)
    assert 30 < totals(workload, lambda prompt, output: 1.0).last_at < 200


def test_equal_names_mean_equal_prefixes() -> None:
    for mix in (Chat(), Rag(), AGENT):
        before: dict[int, tuple[int, ...]] = {}
        for job in mixed("m", mix, 300).jobs():
            for at, name in enumerate(job.names):
                assert before.setdefault(name, job.names[:at]) == job.names[:at]
