"""kv_aware: the smallest sum of waiting, loading and computing, by what the tiers say they hold."""

from collections import Counter, deque
from typing import Any

import msgspec
import pytest

from app.cost import CostModel
from app.routing.kv_aware import KvAware
from app.routing.kv_events import AllBlocksCleared, Batch, BlockRemoved, BlockStored, Event
from app.routing.kv_keys import chunk_keys, pack
from app.routing.policy import CacheReport, Choice
from app.routing.tier_index import Removed, Scope, Stored, TierBatch
from tests.routing.conftest import Fleet

BLOCK, CHUNK = 16, 64
PROMPT = list(range(1000, 1000 + 2048))
TEXT = {"model": "m", "prompt": "some words of a prompt " * 400}


class KvFleet(Fleet):
    """Replicas on two nodes (r0, r2 on n0; r1, r3 on n1) whose engines and tiers say what they hold."""

    def __init__(self, replicas: int = 4, listening: int | None = None) -> None:
        super().__init__("kv_aware", replicas, chunk_tokens=CHUNK)
        self.seqs: Counter[str] = Counter()
        for name in self.names[: replicas if listening is None else listening]:
            self.engine(name)

    @property
    def policy(self) -> KvAware:
        assert isinstance(self.core.policy, KvAware)
        return self.core.policy

    @property
    def cost(self) -> CostModel:
        return self.policy.cost

    def engine(self, replica: str, *events: Event) -> int | None:
        seq = self.seqs[replica]
        self.seqs[replica] += 1
        return self.core.engine_events(replica, seq, msgspec.msgpack.encode(Batch(float(seq), list(events))))

    def holds(self, replica: str, tokens: list[int], salt: str = "", lora: str | None = None) -> None:
        count = len(tokens) // BLOCK
        self.engine(
            replica,
            BlockStored(
                block_hashes=[hash((salt, lora, *tokens[: (at + 1) * BLOCK])) & (2**64 - 1) for at in range(count)],
                parent_block_hash=None,
                token_ids=tokens[: count * BLOCK],
                block_size=BLOCK,
                medium="GPU",
                lora_name=lora,
                extra_keys=[[salt] if salt else None] + [None] * (count - 1),
            ),
        )

    def tier(self, tier: Any, owner: str, tokens: list[int], salt: str = "", *, gone: bool = False) -> None:
        chunks = chunk_keys(pack(tokens), CHUNK)
        event = (Removed if gone else Stored)(Scope("", salt), chunks)
        self.core.tier_events(tier, TierBatch(owner, "1", self.seqs[owner], 0.0, [event]))
        self.seqs[owner] += 1

    def best(self, tokens: list[int] | None = None, **body: Any) -> Choice:
        name, ranking = self.choose({**TEXT, **body}, None, PROMPT if tokens is None else tokens)
        self.core.settled(name, None)
        self.core.check_integrity()
        assert ranking.best is not None
        return ranking.best


def test_the_replica_that_holds_it_wins_and_the_figures_say_why() -> None:
    fleet = KvFleet()
    fleet.holds("r2", PROMPT[:1024])
    best = fleet.best()
    assert (best.replica, best.reason, best.match, best.l1, best.l2) == ("r2", "l0", 1024, 0, 0)
    assert best.prefill_s == pytest.approx(fleet.cost.prefill_s(1024))
    assert best.score == pytest.approx((best.wait_s or 0) + (best.load_s or 0) + (best.prefill_s or 0))


def test_tiers_are_ranked_by_their_speed() -> None:
    fleet = KvFleet()
    fleet.tier("l2", "pool", PROMPT)
    assert fleet.best().reason == "l2"
    fleet.tier("l1", "n1", PROMPT)
    best = fleet.best()
    assert (best.replica in ("r1", "r3"), best.l1, best.l2) == (True, 2048, 0)
    fleet.holds("r0", PROMPT)
    assert fleet.best().replica == "r0"


def test_what_l1_has_behind_l0_and_the_pool_behind_both_adds_up() -> None:
    fleet = KvFleet()
    fleet.holds("r0", PROMPT[:512])
    fleet.tier("l1", "n0", PROMPT[:1024])
    fleet.tier("l2", "pool", PROMPT[:1536])
    best = fleet.best()
    assert (best.replica, best.match, best.l1, best.l2) == ("r0", 512, 512, 512)
    assert best.prefill_s == pytest.approx(fleet.cost.prefill_s(512))


def test_a_node_that_takes_the_place_of_another_is_told_apart_from_it() -> None:
    """Most nodes hold the prompt, so the few that do not are taken from all: all must be those of now."""
    fleet = KvFleet(4)
    fleet.names.append("r4")
    fleet.nodes["r4"] = "n2"
    fleet.update()
    fleet.engine("r4")
    for node in ("n0", "n1", "n2"):
        fleet.tier("l1", node, PROMPT)
    assert {fleet.best().l1 for _ in range(40)} == {len(PROMPT)}
    fleet.core.tier_gone("l1", "n2")
    fleet.tier("l1", "elsewhere", PROMPT)
    assert {fleet.best().replica for _ in range(40)} <= {"r0", "r1", "r2", "r3"}


def test_removals_count_in_every_tier() -> None:
    fleet = KvFleet()
    fleet.holds("r0", PROMPT)
    fleet.engine("r0", AllBlocksCleared())
    fleet.tier("l1", "n0", PROMPT)
    fleet.tier("l1", "n0", PROMPT, gone=True)
    fleet.tier("l2", "pool", PROMPT)
    fleet.tier("l2", "pool", PROMPT, gone=True)
    assert fleet.best().reason == "load"
    fleet.tier("l1", "n0", PROMPT)
    fleet.core.tier_gone("l1", "n0")
    assert fleet.best().reason == "load"


def test_waiting_can_cost_more_than_loading_and_loading_more_than_computing() -> None:
    fleet = KvFleet(2)
    fleet.holds("r0", PROMPT)
    fleet.tier("l2", "pool", PROMPT)
    for _ in range(60):
        fleet.send({"model": "m", "prompt": "other"}, None, [7] * 4000)
    for number in range(30):
        name, _ = fleet.choose(TEXT, None, [number] * 4000)
        fleet.core.settled(name, "r0")
    best = fleet.best()
    assert (best.replica, best.reason) == ("r1", "l2")


def test_a_prompt_to_compute_stays_away_from_a_request_that_loads_until_its_first_token() -> None:
    """It would be computed while the other's KV comes, and that one would then wait for all of it."""
    fleet = KvFleet(2)
    fleet.tier("l2", "pool", PROMPT)
    loads, _ = fleet.choose(TEXT, None, [*PROMPT, 1])
    fleet.core.settled(loads, "r0")
    computes, _ = fleet.choose(TEXT, None, [7] * 1500)
    fleet.core.settled(computes, "r1")
    assert fleet.core.load.weight(0) < fleet.core.load.weight(1)
    assert {fleet.best([9] * 4000).replica for _ in range(20)} == {"r1"}
    fleet.core.first_token(loads, "r0")
    assert {fleet.best([9] * 4000).replica for _ in range(20)} == {"r0"}


def test_salts_and_adapters_are_apart() -> None:
    fleet = KvFleet()
    fleet.holds("r0", PROMPT, salt="s")
    fleet.holds("r1", PROMPT, lora="m:a")
    fleet.tier("l2", "pool", PROMPT, salt="t")
    assert fleet.best().reason == "load"
    assert fleet.best(cache_salt="s").replica == "r0"
    assert fleet.best(model="m:a").replica == "r1"
    assert fleet.best(cache_salt="t").reason == "l2"


def test_a_burst_of_one_new_prompt_does_not_herd_and_does_not_scatter() -> None:
    """Nobody holds it and no event comes while it runs: requests follow the first until waiting costs as much as
    computing.
    """
    fleet = KvFleet(8)
    placed = [fleet.send(TEXT, None, [*PROMPT, number])[1] for number in range(32)]
    counts = Counter(placed)
    assert placed[1] == placed[0]
    assert len(counts) > 1
    assert max(counts.values()) < 32


def test_different_prompts_in_a_burst_are_spread_at_once() -> None:
    fleet = KvFleet(8)
    counts = Counter(fleet.send(TEXT, None, [number] * 2048)[1] for number in range(32))
    assert set(counts.values()) == {4}


def test_answers_that_fill_an_engine_keep_new_prompts_away_though_nothing_is_left_to_prefill() -> None:
    fleet = KvFleet(2)
    long, short = [[kind + at for at in range(20_000)] for kind in (100_000, 200_000)]
    held = []
    for _ in range(2):
        name, ranking = fleet.choose(TEXT, None, long)
        assert ranking.best is not None
        fleet.core.settled(name, "r0")
        fleet.core.accepted(name, "r0")
        fleet.core.first_token(name, "r0")
        held.append(name)
    assert {fleet.best(short[:64]).replica for _ in range(20)} == {"r1"}
    for name in held:
        fleet.core.ended(name, "r0")
    fleet.core.check_integrity()


def test_a_conversation_stays_though_it_begins_with_what_everybody_shares() -> None:
    """The system prompt is hot and nearly free to add elsewhere; what follows it is this conversation's alone."""
    fleet = KvFleet(4)
    own = [*PROMPT, *range(50_000, 51_024)]
    body = {"model": "m", "prompt": "system " * 1170 + "conversation " * 315}
    for number in range(200):
        name, replica = fleet.send({"model": "m", "prompt": "system " * 1170 + f"{number}"}, None, [*PROMPT, number])
        fleet.core.ended(name, replica)
    for name in fleet.names:
        fleet.holds(name, PROMPT)
    name, home = fleet.send(body, None, own)
    fleet.core.ended(name, home)
    fleet.holds(home, own)
    waiting, _ = fleet.choose(TEXT, None, list(range(90_000, 91_200)))
    fleet.core.settled(waiting, home)
    assert {fleet.best([*own, number], prompt=body["prompt"]).replica for number in range(5)} == {home}


def test_idle_replicas_are_told_apart_by_what_they_were_given_lately() -> None:
    fleet = KvFleet(2)
    first = fleet.send(TEXT, None, list(range(4096)))[1]
    fleet.core.ended("q1", first)
    fresh = [list(range(start, start + 512)) for start in range(100_000, 103_000, 1000)]
    assert first not in {fleet.best(tokens).replica for tokens in fresh}


def test_one_hot_prefix_for_most_of_the_traffic_leaves_nobody_idle() -> None:
    fleet = KvFleet(4)
    running: deque[tuple[str, str, list[int]]] = deque()
    served: Counter[str] = Counter()
    for number in range(800):
        tokens = [*PROMPT, *[number] * 64] if number % 5 else [number] * 2048
        name, replica = fleet.send(TEXT, None, tokens)
        served[replica] += 1
        running.append((name, replica, tokens))
        if len(running) > 8:
            done, where, held = running.popleft()
            fleet.holds(where, held)
            fleet.core.ended(done, where)
    assert max(served.values()) < 1.5 * 800 / 4


class TestDegraded:
    def test_without_events_it_says_so_and_behaves_like_prefix_aware(self) -> None:
        fleet = KvFleet(4, listening=0)
        home = fleet.send(TEXT, None, PROMPT)
        fleet.core.ended(*home)
        name, ranking = fleet.choose(TEXT, None, PROMPT)
        assert ranking.degraded == "no KV events from any replica"
        assert (ranking.choices[0].replica, ranking.reason) == (home[1], "prefix")
        fleet.core.settled(name, None)

    def test_without_tokens_it_says_so(self) -> None:
        _, ranking = KvFleet().choose(TEXT)
        assert ranking.degraded == "no token ids for this request"

    def test_a_replica_without_events_is_judged_by_what_was_sent_to_it(self) -> None:
        fleet = KvFleet(2, listening=1)
        for name in ("q", "p"):
            fleet.choose(TEXT, None, PROMPT)
            fleet.core.settled(f"q{fleet.made}", "r1")
            fleet.core.ended(f"q{fleet.made}", "r1")
            assert name
        _, ranking = fleet.choose(TEXT, None, PROMPT)
        assert ranking.degraded == "no KV events from 1 of 2 replicas"
        assert ranking.choices[0].replica == "r1"

    def test_an_index_that_is_behind_catches_up_by_replay(self) -> None:
        fleet = KvFleet(2)
        fleet.seqs["r0"] += 1
        missed = msgspec.msgpack.encode(Batch(1.0, []))
        fleet_first = msgspec.msgpack.encode(Batch(0.0, []))
        gone = BlockRemoved(block_hashes=[1], medium="GPU")
        assert fleet.engine("r0", gone) == 0
        assert fleet.core.engine_events("r0", 0, fleet_first, replayed=True) is None
        assert fleet.core.engine_events("r0", 1, missed, replayed=True) is None
        assert fleet.core.replay_ended("r0") is None
        fleet.holds("r0", PROMPT)
        assert fleet.best().replica == "r0"
        assert fleet.core.status()["l0_incomplete"] == 0

    def test_a_replica_that_came_back_holds_nothing(self) -> None:
        fleet = KvFleet(2)
        fleet.holds("r0", PROMPT)
        fleet.core.replica_died("r0")
        fleet.update()
        assert fleet.best().reason == "load"
        assert fleet.core.status()["l0_blocks"] == 0


class TestSelfCheck:
    def answer(self, fleet: KvFleet, report: CacheReport, times: int = 40) -> dict[str, float]:
        for _ in range(times):
            name, replica = fleet.send(TEXT, None, PROMPT)
            fleet.core.completed(name, report)
            fleet.core.ended(name, replica)
        return fleet.core.status()

    def test_agreement_is_quiet(self) -> None:
        fleet = KvFleet(1)
        fleet.holds("r0", PROMPT)
        assert self.answer(fleet, CacheReport(2048, l0=2040, computed=8))["alarms_on"] == 0

    def test_expected_hits_that_do_not_happen(self, caplog: pytest.LogCaptureFixture) -> None:
        fleet = KvFleet(1)
        fleet.holds("r0", PROMPT)
        status = self.answer(fleet, CacheReport(2048, computed=2048))
        assert (status["alarm_missed"], status["alarms_on"]) == (1, 1)
        assert "self-check" in caplog.text

    def test_hits_that_nobody_expected(self) -> None:
        assert self.answer(KvFleet(1), CacheReport(2048, l0=2000, computed=48))["alarm_unseen"] == 1

    def test_another_token_count_than_the_engines(self) -> None:
        fleet = KvFleet(1)
        fleet.holds("r0", PROMPT)
        assert self.answer(fleet, CacheReport(2060, l0=2040, computed=20))["alarm_tokens"] == 1

    def test_an_alarm_goes_off_again_only_after_it_was_quiet(self) -> None:
        fleet = KvFleet(1)
        fleet.holds("r0", PROMPT)
        self.answer(fleet, CacheReport(2048, computed=2048), 80)
        assert self.answer(fleet, CacheReport(2048, l0=2048), 80)["alarms_on"] == 0
        assert self.answer(fleet, CacheReport(2048, computed=2048), 80)["alarm_missed"] == 2


def test_answers_calibrate_the_cost_of_computing() -> None:
    fleet = KvFleet(1)
    for number in range(20):
        name, replica = fleet.send(TEXT, None, [number] * 2048)
        fleet.core.completed(name, CacheReport(2048, computed=2048), first_token_s=10.0)
        fleet.core.ended(name, replica)
    assert fleet.cost.prefill_s(2048) == pytest.approx(10.0, rel=0.1)


def test_answers_of_a_replica_with_others_at_decode_calibrate_too() -> None:
    """Those of a busy fleet are never without one."""
    fleet = KvFleet(1)
    decoding, where = fleet.send(TEXT, None, [1] * 512)
    fleet.core.first_token(decoding, where)
    name, replica = fleet.send(TEXT, None, [2] * 2048)
    fleet.core.completed(name, CacheReport(2048, computed=2048), first_token_s=10.0)
    assert fleet.cost.prefill_s(2048) > 1.0
    fleet.core.ended(name, replica)


def test_an_answer_that_mostly_waited_says_nothing_of_speeds() -> None:
    fleet = KvFleet(1)
    before = fleet.cost.prefill_s(2048)
    fleet.send(TEXT, None, [1] * 20_000)
    name, _ = fleet.send(TEXT, None, [2] * 2048)
    fleet.core.completed(name, CacheReport(2048, computed=2048), first_token_s=4.0)
    assert fleet.cost.prefill_s(2048) == before


def test_answers_calibrate_the_cost_of_loading() -> None:
    fleet = KvFleet(1)
    for number in range(20):
        name, replica = fleet.send(TEXT, None, [number] * 2048)
        fleet.core.completed(name, CacheReport(2048, l1=2000, computed=48), first_token_s=1.0)
        fleet.core.ended(name, replica)
    assert fleet.cost.first_token(48, l1=2000).total_s == pytest.approx(1.0, rel=0.1)
