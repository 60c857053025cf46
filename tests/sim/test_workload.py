"""Traces, and what the routing code sees of a request."""

import json
from pathlib import Path

import pytest

from app.errors import SettingsError
from app.routing.prompt import chain
from app.sim.scenarios import changed_prefix, flooded
from app.sim.workload import Job, listed, read_trace, token_bytes, tokens_of, totals

TRACE = Path(__file__).parents[3] / "shared" / "traces" / "mooncake_conversation.jsonl"


def written(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(at: int, tokens: int, *names: int) -> dict[str, object]:
    return {"timestamp": at, "input_length": tokens, "output_length": 5, "hash_ids": list(names)}


def test_a_trace_is_read_in_order_with_its_conversations_guessed(tmp_path: Path) -> None:
    path = written(tmp_path / "t", row(3000, 1500, 0, 1, 2), row(4000, 2000, 0, 1, 2, 3), row(5000, 1000, 0, 9))
    workload = read_trace(path)
    first, second, third = workload.jobs()
    assert (first.at, first.tokens, first.output, first.names) == (3.0, 1500, 5, (0, 1, 2))
    assert first.session == second.session != third.session


@pytest.mark.parametrize("bad", [{"timestamp": 1}, row(1, 1025, 0, 1), row(1, 0)])
def test_a_bad_line_is_named(tmp_path: Path, bad: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="line 2"):
        read_trace(written(tmp_path / "t", row(0, 10, 0), bad))


def test_prompts_agree_exactly_as_far_as_their_names() -> None:
    one, other = (token_bytes(Job(0, 300, 1, names), 64) for names in ((1, 2, 3, 4, 5), (1, 2, 3, 9, 8)))
    assert (len(one), len(tokens_of(one))) == (1200, 300)
    agreed = [mine == theirs for mine, theirs in zip(chain(one, 1), chain(other, 1), strict=True)]
    assert agreed == [True, True, True, False]


def test_totals_count_what_a_cache_without_end_would_hit() -> None:
    jobs = [Job(0, 100, 1, (0, 1)), Job(1, 100, 1, (0, 1)), Job(2, 130, 1, (0, 2, 3))]
    found = totals(listed("t", 64, jobs), lambda prompt, output: 1.0)
    assert (found.requests, found.tokens, found.endless_hit_tokens, found.longest) == (3, 330, 164, 131)


def test_a_flood_comes_in_the_middle_and_in_order_of_arrival() -> None:
    jobs = [Job(float(at), 100, 1, (at,)) for at in range(60)]
    mixed = list(flooded(listed("t", 64, jobs), 60.0, 2.0, tokens=128).jobs())
    flood = [job for job in mixed if job.tenant == "flood"]
    assert len(flood) == 20
    assert (flood[0].at, flood[-1].at) == (20.0, 29.5)
    assert [job.at for job in mixed] == sorted(job.at for job in mixed)
    assert len({name for job in flood for name in job.names}) == 40


def test_a_changed_prefix_shares_nothing_with_what_was() -> None:
    jobs = [Job(float(at), 100, 1, (0, 1)) for at in range(10)]
    late = list(changed_prefix(listed("t", 64, jobs), 10.0).jobs())
    assert len({job.names for job in late}) == 2
    assert late[4].names == (0, 1)
    assert not {0, 1} & set(late[5].names)


@pytest.mark.skipif(not TRACE.exists(), reason="the public conversation trace is not here")
def test_an_endless_cache_would_hit_37_4_per_cent_of_the_public_trace() -> None:
    found = totals(read_trace(TRACE), lambda prompt, output: 1.0)
    assert found.requests == 12_031
    assert round(100 * found.endless_hit_ratio, 1) == 37.4
