"""Against a real kube-apiserver and etcd: server-side apply of everything, twice; a conflict; waits; deletion.

Needs KUBEBUILDER_ASSETS (the envtest convention: a folder with `etcd` and `kube-apiserver`). No controllers run there,
so nothing becomes ready by itself: the suite checks what the API server does.
"""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from app.errors import ClusterError
from cluster.clock import SystemClock
from cluster.kube.api import Api
from cluster.kube.errors import FieldConflictError
from cluster.kube.inventory import Inventory
from cluster.kube.readiness import Readiness
from cluster.kube.transport import Call, ConnectionLostError, HttpTransport
from cluster.kube.waiting import Waiter
from cluster.render.bundle import Renderer
from cluster.render.objects import Manifest, in_order
from tests.cluster import crds
from tests.cluster.conftest import renderer
from tests.cluster.fake_cluster import FakeClock

pytestmark = pytest.mark.apiserver

ASSETS = os.environ.get("KUBEBUILDER_ASSETS")
TOKEN = "tierserve-test"
CRDS = ["ray.io_rayservices.yaml", "ray.io_rayclusters.yaml"]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def commands(folder: Path, assets: Path) -> tuple[list[list[str]], str]:
    etcd, peer, api = free_port(), free_port(), free_port()
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    key = folder / "sa.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    client, peers = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
    return [
        [
            *(str(assets / "etcd"), "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peers),
        ],
        [
            *(str(assets / "kube-apiserver"), "--etcd-servers", client, "--secure-port", str(api)),
            *("--bind-address", "127.0.0.1", "--cert-dir", str(folder / "certs"), "--authorization-mode", "RBAC"),
            *("--token-auth-file", str(folder / "tokens.csv"), "--service-cluster-ip-range", "10.0.0.0/24"),
            *("--service-account-issuer", "https://localhost", "--service-account-key-file", str(key)),
            *("--service-account-signing-key-file", str(key), "--disable-admission-plugins", "ServiceAccount"),
        ],
    ], f"https://127.0.0.1:{api}"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    if ASSETS is None:
        pytest.skip("KUBEBUILDER_ASSETS is not set: it names a folder with etcd and kube-apiserver (setup-envtest)")
    folder = tmp_path_factory.mktemp("apiserver")
    lines, host = commands(folder, Path(ASSETS))
    running = []
    try:
        for line in lines:
            with (folder / f"{Path(line[0]).name}.log").open("w") as log:
                running.append(subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT))
        urllib3.disable_warnings()
        pool = urllib3.PoolManager(cert_reqs="CERT_NONE")
        transport = HttpTransport(host, pool, lambda: {"Authorization": f"Bearer {TOKEN}"})
        await_ready(transport, folder)
        yield Api(transport, SystemClock())
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)


def await_ready(transport: HttpTransport, folder: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            if transport.send(Call("GET", "/readyz")).status == 200:
                return
        except ConnectionLostError:
            pass
        time.sleep(0.5)
    pytest.fail((folder / "kube-apiserver.log").read_text()[-2000:])


@pytest.fixture(scope="module")
def fleet(api: Api) -> Renderer:
    major, minor = api.version()
    return Renderer(renderer("g6e-fleet").config.model_copy(update={"kubernetes": f"{major}.{minor}"}))


def everything(of: Renderer) -> list[Manifest]:
    return in_order([manifest for bundle in of.all() for manifest in bundle.objects])


@pytest.fixture(scope="module")
def applied(api: Api, fleet: Renderer) -> list[Manifest]:
    """The CRDs (a megabyte each: client-side apply could not) and all objects."""
    waiter = Waiter(SystemClock(), lambda _: None, poll_s=0.2)
    for name in CRDS:
        manifest = crds.definition(name)
        api.apply(manifest)
        waiter.ready(api, [api.resolved(manifest)], 60)
    api.forget_kinds()
    manifests = everything(fleet)
    for manifest in manifests:
        assert api.apply(manifest) == "created", manifest["metadata"]["name"]
    return manifests


def test_dry_run_stores_nothing(api: Api) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "only-tried"}}
    assert api.apply(namespace, dry_run=True) == "created"
    assert api.get(api.resolved(namespace)) is None


def test_a_second_apply_changes_nothing(api: Api, applied: list[Manifest]) -> None:
    assert {api.apply(manifest) for manifest in applied} == {"unchanged"}


def test_a_foreign_manager_is_named_and_its_value_kept(api: Api, applied: list[Manifest]) -> None:
    (service,) = [m for m in applied if m["kind"] == "RayService"]
    theirs: dict[str, Any] = {key: service[key] for key in ("apiVersion", "kind")}
    theirs |= {"metadata": {"name": service["metadata"]["name"], "namespace": "tierserve"}}
    theirs["spec"] = {"serveConfigV2": "theirs"}
    path = api._path(api.resolved(service))
    import json

    query = {"fieldManager": "somebody", "force": "true"}
    answer = api._send(Call("PATCH", path, query, json.dumps(theirs), "application/apply-patch+yaml"))
    assert answer.status == 200, answer.text
    with pytest.raises(FieldConflictError, match="somebody"):
        api.apply(service)
    assert (api.get(api.resolved(service)) or {})["spec"]["serveConfigV2"] == "theirs"
    assert api.apply(service, force=True) == "changed"


def test_an_invalid_object_is_refused(api: Api, applied: list[Manifest]) -> None:
    (service,) = [m for m in applied if m["kind"] == "RayService"]
    broken = {**service, "spec": {**service["spec"], "rayClusterConfig": {"headGroupSpec": 3}}}
    with pytest.raises(ClusterError, match="headGroupSpec"):
        api.apply(broken, force=True)


def test_waits_end_with_what_was_seen(api: Api, applied: list[Manifest]) -> None:
    (redis,) = [m for m in applied if m["kind"] == "StatefulSet"]
    with pytest.raises(ClusterError, match="0 of 1 ready"):
        Waiter(FakeClock(), lambda _: None).ready(api, [api.resolved(redis)], 10)
    Waiter(FakeClock(), lambda _: None).until("it", lambda: Readiness("ready", "fine"), 1)


def test_inventory_comes_back_as_written(api: Api, applied: list[Manifest]) -> None:
    inventory = Inventory(api, "tierserve", "test")
    refs = [api.resolved(manifest) for manifest in applied]
    inventory.write([*refs, *refs])
    assert inventory.read() == refs
    inventory.drop()
    assert inventory.read() == []


def test_deletion(api: Api, applied: list[Manifest]) -> None:
    """Last in this file. Without controllers, what has finalizers stays; everything else goes at once."""
    stay = {"Namespace", "PersistentVolumeClaim", "PersistentVolume", "CustomResourceDefinition"}
    for manifest in reversed(applied):
        ref = api.resolved(manifest)
        assert api.delete(ref) is True
        left = api.get(ref)
        assert left is None or (ref.kind in stay and "deletionTimestamp" in left["metadata"]), ref
