"""The API client, the waits and the judgements, each alone."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from app.errors import ClusterError
from cluster.kube.api import Api
from cluster.kube.connect import from_kubeconfig
from cluster.kube.errors import UnknownKindError
from cluster.kube.readiness import Readiness, readiness
from cluster.kube.transport import Answer, Call, ConnectionLostError, HttpTransport
from cluster.kube.waiting import Waiter
from cluster.render.objects import Ref
from tests.cluster.fake_cluster import FakeClock, FakeCluster, refusal


def api(kube: FakeCluster | None = None) -> Api:
    return Api(kube or FakeCluster(), FakeClock())


NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}


class TestApi:
    def test_apply_tells_created_changed_and_unchanged(self) -> None:
        client = api()
        assert client.apply(NAMESPACE) == "created"
        assert client.apply(NAMESPACE) == "unchanged"
        labelled = {**NAMESPACE, "metadata": {"name": "a", "labels": {"x": "y"}}}
        assert client.apply(labelled, dry_run=True) == "changed"
        assert client.apply(labelled) == "changed"

    def test_version_drops_the_suffix_of_eks(self) -> None:
        assert api().version() == (1, 33)

    def test_unknown_kind(self) -> None:
        with pytest.raises(UnknownKindError, match="apply the stage operators first"):
            api().get(Ref("ray.io/v1", "RayService", "a", "b"))

    def test_delete_says_whether_it_was_there(self) -> None:
        client = api()
        client.apply(NAMESPACE)
        ref = Ref("v1", "Namespace", None, "a")
        assert (client.delete(ref), client.delete(ref)) == (True, False)

    def test_create_leaves_what_is_there(self) -> None:
        kube = FakeCluster()
        client = api(kube)
        client.apply(NAMESPACE)
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "a"}, "data": {"k": "1"}}
        assert client.create(secret) is True
        assert client.create({**secret, "data": {"k": "2"}}) is False
        assert kube.of("Secret")[0]["data"] == {"k": "1"}

    def test_an_answer_that_is_no_json_is_shown(self) -> None:
        kube = FakeCluster()
        kube.script("GET", "/version", Answer(418, "<html>proxy</html>"))
        with pytest.raises(ClusterError, match="HTTP 418: <html>proxy"):
            api(kube).version()

    def test_conflict_without_a_manager_is_a_race(self) -> None:
        kube = FakeCluster()
        kube.script("PATCH", "namespaces/a", refusal(409, "object has been modified"))
        with pytest.raises(ClusterError, match=r"changed at the same time.*apply again"):
            api(kube).apply(NAMESPACE)


class TestWaiting:
    def test_says_each_new_text_once(self) -> None:
        said: list[str] = []
        seen = iter([Readiness("waiting", "0 of 2"), Readiness("waiting", "0 of 2"), Readiness("ready", "2 of 2")])
        Waiter(FakeClock(), said.append).until("it", lambda: next(seen), 60)
        assert said == ["  it: 0 of 2", "  it: 2 of 2"]

    def test_a_lost_connection_is_not_the_end(self) -> None:
        said: list[str] = []
        calls: list[int] = []

        def look() -> Readiness:
            calls.append(1)
            if len(calls) == 1:
                raise ConnectionLostError("reset")
            return Readiness("ready", "fine")

        Waiter(FakeClock(), said.append).until("it", look, 60)
        assert "no connection (reset), trying again" in said[0]

    def test_other_errors_end_it_at_once(self) -> None:
        def look() -> Readiness:
            raise ClusterError("forbidden")

        clock = FakeClock()
        with pytest.raises(ClusterError, match=r"^forbidden$"):
            Waiter(clock, print).until("it", look, 60)
        assert clock.time == 0

    def test_gone_names_the_finalizers(self) -> None:
        kube = FakeCluster()
        kube.add({**NAMESPACE, "metadata": {"name": "a", "finalizers": ["kubernetes"]}})
        with pytest.raises(ClusterError, match=r"still there .kubernetes"):
            Waiter(FakeClock(), lambda _: None).gone(api(kube), Ref("v1", "Namespace", None, "a"), 10)


def judged(kind: str, status: dict[str, Any], **spec: Any) -> tuple[str, str]:
    found = readiness({"kind": kind, "metadata": {"generation": 1}, "spec": spec, "status": status})
    return found.state, found.text


def ready(reason: str, status: str = "True", message: str = "") -> dict[str, Any]:
    return {"type": "Ready", "status": status, "reason": reason, "message": message}


def service(conditions: list[dict[str, Any]], **applications: str) -> dict[str, Any]:
    statuses = {name: {"status": state, "message": "boom"} for name, state in applications.items()}
    return {"observedGeneration": 1, "conditions": conditions, "activeServiceStatus": {"applicationStatuses": statuses}}


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        ("RayService", {}, "waiting"),
        ("RayService", service([ready("NonZeroServeEndpoints")], a="RUNNING", b="RUNNING"), "ready"),
        # One endpoint is enough for KubeRay, not for us.
        ("RayService", service([ready("NonZeroServeEndpoints")], a="RUNNING", b="DEPLOYING"), "waiting"),
        ("RayService", service([ready("Initializing", "False")], a="RUNNING"), "waiting"),
        ("RayService", service([ready("NonZeroServeEndpoints")], a="DEPLOY_FAILED"), "failed"),
        ("RayService", service([ready("InitializingTimeout", "False")]), "failed"),
        ("RayService", service([ready("ValidationFailed", "False", "name too long")]), "failed"),
        ("RayService", service([ready("NonZeroServeEndpoints")]) | {"observedGeneration": 0}, "waiting"),
        ("PersistentVolumeClaim", {"phase": "Pending"}, "waiting"),
        ("PersistentVolumeClaim", {"phase": "Bound"}, "ready"),
        ("PersistentVolumeClaim", {"phase": "Lost"}, "failed"),
        ("Job", {"active": 1}, "waiting"),
        ("Job", {"conditions": [{"type": "Complete", "status": "True"}]}, "ready"),
        ("Job", {"conditions": [{"type": "Failed", "status": "True", "reason": "Deadline"}]}, "failed"),
        ("Deployment", {"availableReplicas": 1, "updatedReplicas": 1}, "ready"),
        ("Deployment", {"availableReplicas": 1, "updatedReplicas": 0}, "waiting"),
        ("Deployment", {"conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]}, "failed"),
        ("DaemonSet", {"desiredNumberScheduled": 2, "numberReady": 1}, "waiting"),
        ("InferenceEndpointConfig", {"state": "DeploymentInProgress"}, "waiting"),
        ("InferenceEndpointConfig", {"state": "DeploymentComplete"}, "ready"),
        ("InferenceEndpointConfig", {"state": "DeploymentFailed"}, "failed"),
        ("CustomResourceDefinition", {"conditions": [{"type": "Established", "status": "False"}]}, "waiting"),
        ("ConfigMap", {}, "ready"),
    ],
)
def test_readiness(kind: str, status: dict[str, Any], expected: str) -> None:
    assert judged(kind, status)[0] == expected


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, str, str, str]]]]:
    """A real HTTP server on this machine that records what it is asked."""
    seen: list[tuple[str, str, str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            seen.append((self.path, self.headers["Content-Type"], self.headers["Authorization"], body))
            self._answer(200, {"ok": True})

        def do_GET(self) -> None:
            seen.append((self.path, "", self.headers["Authorization"] or "", ""))
            self._answer(403, {"message": "no"})

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", seen
        running.shutdown()


def test_http_transport(server: tuple[str, list[tuple[str, str, str, str]]]) -> None:
    host, seen = server
    transport = HttpTransport(host, urllib3.PoolManager(), lambda: {"Authorization": "Bearer t"})
    answer = transport.send(Call("PATCH", "/x", {"force": "true"}, "{}", "application/apply-patch+yaml"))
    assert (answer.status, answer.body) == (200, {"ok": True})
    assert seen == [("/x?force=true", "application/apply-patch+yaml", "Bearer t", "{}")]
    assert transport.send(Call("GET", "/y")).status == 403


def test_http_transport_without_a_server() -> None:
    with pytest.raises(ConnectionLostError, match=r"127\.0\.0\.1:9"):
        HttpTransport("http://127.0.0.1:9", urllib3.PoolManager()).send(Call("GET", "/"))


def test_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: tuple[str, list[tuple[str, str, str, str]]]
) -> None:
    host, seen = server
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": host}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
        "contexts": [{"name": "kind-x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "kind-x",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    from_kubeconfig("kind-x").send(Call("GET", "/version"))
    assert seen == [("/version", "", "Bearer secret-token", "")]
    with pytest.raises(ClusterError, match="kubeconfig context absent"):
        from_kubeconfig("absent")
