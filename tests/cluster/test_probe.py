"""The probe against a fleet in memory: two nodes with their own L0, one pool, chunks as in LMCache."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.errors import ClusterError
from cluster.probe import prompts
from cluster.probe.client import Endpoint
from cluster.probe.proof import full_chunks
from cluster.probe.replicas import Replica, pair, parse, running
from cluster.probe.report import check_report, summary
from cluster.probe.run import LENGTHS, Plan, run
from cluster.stages import run as stages
from cluster.stages.proof import Proof
from tests.cluster.conftest import World

CHUNK = 64
REPLICAS = [Replica("a1", "node-a"), Replica("b1", "node-b")]


class Fleet:
    """Answers as the ingress would. A token is a word; template tokens come on top."""

    def __init__(self, *, shared: bool = True, store_after_s: float = 1.0, template: int = 20) -> None:
        self.shared, self.store_after_s, self.template = shared, store_after_s, template
        self.now = 0.0
        self.pool: dict[str, float] = {}
        self.l0: dict[str, set[str]] = {"a1": set(), "b1": set()}
        self.bodies: list[tuple[str, str]] = []

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def timer(self) -> float:
        return self.now

    def handle(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer key"
        body = json.loads(request.content)
        replica = request.headers["x-tierserve-replica"]
        text = " ".join(message["content"] for message in body["messages"])
        self.bodies.append((replica, text))
        tokens = len(text.split()) + self.template
        l0, l2 = self._hits(replica, text, tokens)
        self.now += 0.001 * (tokens - l0 - l2) + 0.0001 * l2 + 0.01
        self.l0[replica].add(text)
        self.pool.setdefault(text, self.now + self.store_after_s)
        details = {
            "cached_tokens": l0 + l2,
            "l0_tokens": l0,
            "l1_tokens": 0,
            "l2_tokens": l2,
            "computed_tokens": tokens - l0 - l2,
            "replica": replica,
        }
        usage = {"prompt_tokens": tokens, "prompt_tokens_details": details}
        return httpx.Response(200, json={"usage": usage, "choices": [{"message": {"content": "x"}}]})

    def _hits(self, replica: str, text: str, tokens: int) -> tuple[int, int]:
        if text in self.l0[replica]:
            return (tokens - 1) // 16 * 16, 0
        if self.shared and self.pool.get(text, float("inf")) <= self.now:
            head = 16 if self.l0[replica] else 0  # the chat template, from any earlier request
            return head, full_chunks(tokens, CHUNK) - head
        return 0, 0

    def endpoint(self) -> Endpoint:
        http = httpx.Client(transport=httpx.MockTransport(self.handle))
        return Endpoint(http, "http://serve:8000", "m", "key", self.timer)

    def report(self, *, bench: bool = False) -> dict[str, Any]:
        return run(self.endpoint(), REPLICAS, Plan(CHUNK, "n", bench), self.pause)


def test_the_same_bytes_go_to_two_nodes_and_all_full_chunks_come_from_l2() -> None:
    fleet = Fleet()
    report = check_report(fleet.report())
    proof = report["proof"]
    assert 1900 < proof["tokens"] < 2100
    assert proof["l0_tokens"] + proof["l2_tokens"] == proof["full_chunk_tokens"] == full_chunks(proof["tokens"], CHUNK)
    assert proof["l2_s"] < proof["cold_s"]
    (first,) = {text for replica, text in fleet.bodies if replica == "b1"}
    assert ("a1", first) in fleet.bodies
    assert "full-chunk tokens from L2" in "\n".join(summary(report))


def test_slow_stores_get_more_time_with_a_new_prompt() -> None:
    fleet = Fleet(store_after_s=10)
    assert check_report(fleet.report())["proof"]["pause_s"] == 15.0
    assert len({text for replica, text in fleet.bodies if replica == "b1"}) == 3


def test_nodes_that_share_nothing_fail_the_proof() -> None:
    with pytest.raises(ClusterError, match=r"node B found 0 of \d+ tokens in full chunks"):
        check_report(Fleet(shared=False).report())


def test_a_hit_that_is_not_from_l2_is_no_proof() -> None:
    report = Fleet().report()
    report["proof"] |= {"l2_tokens": 0, "l0_tokens": 0}
    with pytest.raises(ClusterError, match="only 0 came from L2"):
        check_report(report)


def test_sweep_and_dialogue() -> None:
    report = Fleet().report(bench=True)
    assert [abs(row["tokens"] - wanted) < 60 for row, wanted in zip(report["ttft"], LENGTHS, strict=True)]
    assert len(report["dialogue"]) == 4
    lengths = [turn["tokens"] for turn in report["dialogue"]]
    assert lengths == sorted(lengths)
    assert 500 < lengths[0] < 600
    assert 2000 < lengths[-1] < 2250
    assert "dialogue of 4 turns" in summary(report)[-1]


def test_chart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from cluster.probe.chart import draw

    picture = draw(Fleet().report(bench=True), tmp_path / "x.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_prompts_are_the_same_for_the_same_nonce_only() -> None:
    assert prompts.text("n", 50) == prompts.text("n", 50) != prompts.text("m", 50)


@pytest.mark.parametrize(("tokens", "full"), [(0, 0), (64, 0), (65, 64), (128, 64), (129, 128)])
def test_full_chunks_leave_the_last_token(tokens: int, full: int) -> None:
    assert full_chunks(max(tokens, 1), 64) == full


class TestRefusals:
    def ask(self, response: httpx.Response) -> None:
        http = httpx.Client(transport=httpx.MockTransport(lambda _: response))
        Endpoint(http, "http://serve", "m").ask(prompts.message("n", 5), "a1")

    def test_an_error_of_the_server(self) -> None:
        with pytest.raises(ClusterError, match="HTTP 401: no key"):
            self.ask(httpx.Response(401, text="no key"))

    def test_no_report(self) -> None:
        with pytest.raises(ClusterError, match="carries no cache report"):
            self.ask(httpx.Response(200, json={"choices": []}))

    def test_another_replica(self) -> None:
        details = {"l0_tokens": 0, "computed_tokens": 5, "replica": "z"}
        body = {"usage": {"prompt_tokens_details": details}, "choices": [{"message": {"content": ""}}]}
        with pytest.raises(ClusterError, match=r"z answered instead of a1: set routing\.debug"):
            self.ask(httpx.Response(200, json=body))

    def test_nobody_there(self) -> None:
        def refuse(_: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("refused")

        http = httpx.Client(transport=httpx.MockTransport(refuse))
        with pytest.raises(ClusterError, match="does not answer"):
            Endpoint(http, "http://serve", "m").ask(prompts.message("n", 5), "a1")


DASHBOARD = {
    "applications": {
        "app": {
            "deployments": {
                "ingress": {"replicas": [{"replica_id": "i", "node_id": "n1", "state": "RUNNING"}]},
                "engine:m": {
                    "replicas": [
                        {"replica_id": "r2", "node_id": "n2", "state": "RUNNING"},
                        {"replica_id": "r1", "node_id": "n1", "state": "RUNNING"},
                        {"replica_id": "r3", "node_id": "n3", "state": "STARTING"},
                    ]
                },
            }
        }
    }
}


class TestReplicas:
    def test_running_engines_only(self) -> None:
        assert parse(DASHBOARD, "app") == [Replica("r1", "n1"), Replica("r2", "n2")]

    def test_another_application(self) -> None:
        with pytest.raises(ClusterError, match="no application x; it has: app"):
            parse(DASHBOARD, "x")

    def test_one_node_is_not_enough(self) -> None:
        with pytest.raises(ClusterError, match=r"2 replicas on 1 node"):
            pair([Replica("a", "n"), Replica("b", "n")])

    def test_the_token_is_sent_and_its_refusal_explained(self) -> None:
        def handle(request: httpx.Request) -> httpx.Response:
            right = request.headers.get("authorization") == "Bearer t"
            return httpx.Response(200, json=DASHBOARD) if right else httpx.Response(401)

        http = httpx.Client(transport=httpx.MockTransport(handle))
        assert len(running(http, "http://head:8265", "app", "t")) == 2
        with pytest.raises(ClusterError, match="refuses the token"):
            running(http, "http://head:8265", "app", "")


def test_the_stage_runs_the_probe_and_reads_its_report(world: World, tmp_path: Path) -> None:
    stages.apply(world.context(), stages.chosen(["tiered-storage", "operators", "curvine", "serving"]))
    world.kube.logs["tierserve-probe-x"] = "some warning\n" + json.dumps(Fleet().report(bench=True))
    stages.apply(world.context(), stages.chosen([]))
    assert "full-chunk tokens from L2" in world.text
    (job,) = [o for o in world.kube.of("Job") if o["metadata"]["name"] == "tierserve-probe"]
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--url") + 1] == "http://tierserve-serve-svc:8000"
    assert args[args.index("--chunk-tokens") + 1] == "256"
    files = Proof().bench(world.context(), tmp_path / "out")
    assert [file.name for file in files] == ["cluster-bench.json", "cluster-bench.png"]
    world.kube.logs["tierserve-probe-x"] = "Traceback"
    with pytest.raises(ClusterError, match="printed no report: Traceback"):
        stages.verify(world.context(), stages.chosen(["verify"]))
