"""The comparison with systems that are scripted servers: order, texts, counts, and that each one is stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from app.bench.compare import compare, result_of
from app.bench.compare_load import Mix
from app.bench.compare_run import Options, run
from app.bench.load import Endpoint, progress_bars
from app.bench.systems import OURS, Engines, System
from app.errors import ServingError
from tests.bench.load.sse import Script, SseServer

MIX = Mix(chats=2, system_prompts=1, system_tokens=40, turns=2, question_tokens=8, reading_s=0.01, alone=2)
OPTIONS = Options(MIX, rounds=2, seed=5)


class World:
    """Two systems on one server. Notes what is started, stopped, and sent in between."""

    def __init__(self, server: SseServer, tokenizer: Any) -> None:
        self.server, self.tokenizer = server, tokenizer
        self.events: list[str] = []
        self.sent: dict[str, list[list[str]]] = {}
        self.off_by = 0
        server.answer = self._answer

    def _answer(self, body: dict[str, Any]) -> Script:
        text = self.tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
        total = len(self.tokenizer.encode(text, add_special_tokens=False)) + self.off_by
        details = {"cached_tokens": total // 2}
        return Script(
            usage={"prompt_tokens": total, "completion_tokens": body["max_tokens"], "prompt_tokens_details": details}
        )

    def system(self, name: str) -> System:
        @contextmanager
        def started(engines: Engines) -> Iterator[tuple[Endpoint, ...]]:
            self.events.append(f"start {name}")
            before = len(self.server.asked)
            try:
                yield (Endpoint(self.server.url, "m", name=name),)
            finally:
                self.events.append(f"stop {name}")
                texts = sorted(str(body["messages"]) for _, body in self.server.asked[before:])
                self.sent.setdefault(name, []).append(texts)

        return System(name, started)


@pytest.fixture
def world(scripted: SseServer, tokenizer: Any) -> World:
    return World(scripted, tokenizer)


def test_every_system_is_sent_the_same_and_stopped_before_the_next(world: World) -> None:
    with progress_bars() as bars:
        found = run(Engines({}), [world.system(OURS), world.system("b")], world.tokenizer, OPTIONS, bars)
    names = [OURS, "b", "b", OURS]
    assert world.events == [f"{what} {name}" for name in names for what in ("start", "stop")]
    assert world.sent[OURS] == world.sent["b"]
    first, second = world.sent["b"]
    assert not set(first) & set(second)
    assert {part: {name: len(each) for name, each in systems.items()} for part, systems in found.rounds.items()} == {
        "chats": {OURS: 2, "b": 2},
        "nothing shared": {OURS: 2, "b": 2},
    }


def test_the_result_has_both_parts_apart(world: World) -> None:
    with progress_bars() as bars:
        found = run(Engines({}), [world.system(OURS), world.system("b")], world.tokenizer, OPTIONS, bars)
    whole = result_of(found, OPTIONS, {"replicas": 2}, "c").as_json()
    assert whole["systems"]["b"]["requests"] == 8
    assert whole["nothing_shared"]["systems"]["b"]["requests"] == 4
    assert whole["systems"]["b"]["same_answers"] == 1.0
    assert whole["systems"]["b"]["hit_ratio"] == pytest.approx(0.5, abs=0.02)
    for ratios in (whole["ratios"], whole["nothing_shared"]["ratios"]):
        assert set(ratios) == {"b"}
        assert set(ratios["b"]) == {"ttft_mean_s", "ttft_median_s", "ttft_p90_s", "e2e_median_s", "requests_per_s"}
    assert set(whole["settings"]["took_s"]) == {OURS, "b"}
    assert set(whole["summary"]) == {f"{name}, {part}" for name in (OURS, "b") for part in found.rounds}


def test_records_of_all_systems_have_indices_of_their_own(world: World) -> None:
    with progress_bars() as bars:
        found = run(Engines({}), [world.system(OURS), world.system("b")], world.tokenizer, OPTIONS, bars)
    result = result_of(found, OPTIONS, {}, "c")
    assert [record.index for record in result.records] == list(range(24))


def test_a_system_that_counts_otherwise_ends_the_comparison_and_is_stopped(world: World) -> None:
    world.off_by = 1
    with progress_bars() as bars, pytest.raises(ServingError, match="b counts"):
        run(Engines({}), [world.system("b")], world.tokenizer, OPTIONS, bars)
    assert world.events == ["start b", "stop b"]


def test_a_system_that_does_not_answer_ends_the_comparison_and_is_stopped(world: World) -> None:
    world.server.answer = lambda body: Script(status=500)
    with progress_bars() as bars, pytest.raises(ServingError, match=r"b has started and does not answer: .*500"):
        run(Engines({}), [world.system("b")], world.tokenizer, OPTIONS, bars)
    assert world.events == ["start b", "stop b"]


def test_a_page_needs_a_directory_of_results() -> None:
    done = CliRunner().invoke(compare, ["--docs", "docs"])
    assert done.exit_code == 2
    assert "--out" in done.output
