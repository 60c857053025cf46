"""The report is a count: whatever goes in, its parts add up to the prompt, and it reads back as it was written."""

from hypothesis import given
from hypothesis import strategies as st

from app.cache_report import CacheReport, PromptTokens, from_details, split, total

tokens = st.integers(0, 200_000)
prompts = st.builds(lambda local, external, rest: PromptTokens(local + external + rest, local, external), *[tokens] * 3)
lookups = st.none() | st.tuples(tokens, tokens)


@given(prompts, lookups)
def test_parts_of_a_split_add_up_to_the_prompt(prompt: PromptTokens, lookup: tuple[int, int] | None) -> None:
    report = split(prompt, lookup)
    report.check_integrity()
    assert (report.l0, report.external, report.prompt_tokens) == (prompt.local, prompt.external, prompt.total)
    assert (report.l1 is None) == (report.l2 is None)


@given(prompts, tokens, tokens)
def test_each_loaded_token_is_counted_where_the_lookup_found_it(prompt: PromptTokens, l1: int, more: int) -> None:
    loaded = range(prompt.local, prompt.local + prompt.external)
    report = split(prompt, (l1, max(0, loaded.stop - l1) + more))
    assert report.l1 == len(range(loaded.start, min(l1, loaded.stop)))
    assert report.l2 == len(range(max(l1, loaded.start), loaded.stop))


def test_a_lookup_that_does_not_cover_what_was_loaded_is_not_of_this_load() -> None:
    report = split(PromptTokens(total=300, local=0, external=256), (64, 64))
    assert (report.l1, report.l2, report.external) == (None, None, 256)


def test_a_split_that_is_not_known_is_not_guessed() -> None:
    report = split(PromptTokens(total=100, local=32, external=64), None)
    assert report.header() == "l0=32, l1+l2=64, computed=4"
    assert report.details() == {"cached_tokens": 96, "l0_tokens": 32, "computed_tokens": 4}


def test_nothing_loaded_needs_no_lookup() -> None:
    assert split(PromptTokens(100, 32, 0), None) == CacheReport(32, 0, 68, 0, 0)


@given(st.lists(st.tuples(prompts, lookups), max_size=5), st.text(max_size=10))
def test_a_total_is_the_sum_of_its_prompts(
    each: list[tuple[PromptTokens, tuple[int, int] | None]], replica: str
) -> None:
    parts = [split(*one) for one in each]
    whole = total(parts, replica)
    if whole is None:
        assert not parts
        return
    whole.check_integrity()
    assert whole.prompt_tokens == sum(prompt.total for prompt, _ in each)
    assert (whole.l1 is None) == any(part.l1 is None for part in parts)
    assert whole.replica == replica


@given(prompts, lookups, st.text(max_size=10))
def test_details_read_back_as_the_report(prompt: PromptTokens, lookup: tuple[int, int] | None, replica: str) -> None:
    report = total([split(prompt, lookup)], replica)
    assert report is not None
    assert from_details(report.details()) == report
    assert report.details()["cached_tokens"] == report.cached_tokens


@given(prompts, tokens, tokens)
def test_the_numbers_in_the_header_add_up_to_the_prompt(prompt: PromptTokens, l1: int, l2: int) -> None:
    for lookup in (None, (l1, l2)):
        header = split(prompt, lookup).header()
        assert sum(int(part.split("=")[1]) for part in header.split(", ")) == prompt.total


def test_details_of_other_servers_hold_no_report() -> None:
    assert from_details(None) is None
    assert from_details({}) is None
    assert from_details({"cached_tokens": 12}) is None
    assert from_details({"cached_tokens": 12, "l0_tokens": None, "computed_tokens": 3}) is None
