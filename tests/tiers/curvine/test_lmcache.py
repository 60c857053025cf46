"""The adapter inside LMCache: its storage manager, its server process, its own benchmark."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from lmcache.cli.commands.bench.l2_adapter_bench.data import make_memory_objects, make_object_keys  # noqa: E402
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, PrefetchTaskSpec  # noqa: E402
from lmcache.v1.distributed.config import (  # noqa: E402
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig, get_l2_adapter_config_class  # noqa: E402
from lmcache.v1.distributed.storage_manager import StorageManager  # noqa: E402

from app.cost import CostModel  # noqa: E402
from app.tiers.curvine import adapter as curvine  # noqa: E402
from app.tiers.curvine.adapter import CurvineL2Adapter  # noqa: E402
from app.tiers.loading import ENOUGH, RULE  # noqa: E402
from tests.tiers.curvine.mounts import wait_until  # noqa: E402
from tests.tiers.curvine.test_adapter import LAYOUT, PLUGIN, SIZE, Driver  # noqa: E402

ROOT = Path(__file__).parents[3]
KV = MemoryLayoutDesc(shapes=[torch.Size([2, 4, 64, 16])], dtypes=[torch.bfloat16])


@contextmanager
def manager(path: Path, prefetch_policy: str = "default") -> Iterator[StorageManager]:
    curvine.register()
    memory = L1MemoryManagerConfig(size_in_bytes=64 << 20, use_lazy=False, shm_name="")
    adapter = get_l2_adapter_config_class("curvine").from_dict({"type": "curvine", "path": str(path)})
    config = StorageManagerConfig(
        l1_manager_config=L1ManagerConfig(memory_config=memory),
        eviction_config=EvictionConfig(eviction_policy="LRU"),
        l2_adapter_config=L2AdaptersConfig([adapter]),
        prefetch_policy=prefetch_policy,
    )
    storage = StorageManager(config)
    try:
        yield storage
    finally:
        storage.close()


def write(storage: Any, keys: list[Any]) -> list[Any]:
    """Random KV into L1, and from there, behind our back, into L2. Returns what was written."""
    objects = storage.reserve_write(keys, KV)
    assert set(objects) == set(keys)
    values = []
    for key in keys:
        tensor = objects[key].tensor
        tensor.copy_(torch.randn(tensor.shape).to(tensor.dtype))
        values.append(tensor.clone())
    storage.finish_write(keys)
    return values


def prefetch(storage: Any, keys: list[Any]) -> tuple[int, int]:
    """Hits from L1 and from L2; takes one read lock a key."""
    spec = PrefetchTaskSpec(key_groups=[GroupedObjectKeys(keys=keys, object_group_id=0, layout_desc=KV)])
    handle = storage.submit_prefetch_task(spec)
    result: list[Any] = []

    def ready() -> bool:
        status = storage.query_prefetch_status(handle)
        if status is not None:
            result.append(status)
        return bool(result)

    wait_until(ready)
    return tuple(sum(row.popcount() for row in rows) for rows in (result[0].l1_hit_cells, result[0].l2_hit_cells))


def stored(path: Path) -> int:
    return len(list(path.rglob("*.arrow"))) - len(list(path.glob("control/*.arrow")))


def test_another_server_finds_the_prefix_in_the_pool_and_reads_the_same_kv(tmp_path: Path) -> None:
    keys = make_object_keys(16)
    with manager(tmp_path) as first:
        values = write(first, keys)
        wait_until(lambda: stored(tmp_path) == 16)
    with manager(tmp_path) as second:
        assert prefetch(second, [*keys, *make_object_keys(2, key_offset=100)]) == (0, 16)
        with second.read_prefetched_results(keys) as objects:
            assert objects is not None
            assert all(torch.equal(obj.tensor, value) for obj, value in zip(objects, values, strict=True))
        second.finish_read_prefetched(keys)


@pytest.mark.parametrize(("policy", "again"), [("default", (0, 8)), ("tierserve", (8, 0))])
def test_what_was_loaded_from_l2_stays_in_l1_under_our_policy(
    tmp_path: Path, policy: str, again: tuple[int, int]
) -> None:
    keys = make_object_keys(8)
    with manager(tmp_path) as first:
        write(first, keys)
        wait_until(lambda: stored(tmp_path) == 8)
    with manager(tmp_path, policy) as second:
        assert prefetch(second, keys) == (0, 8)
        second.finish_read_prefetched(keys)
        assert prefetch(second, keys) == again
        second.finish_read_prefetched(keys)


def test_what_is_sooner_computed_is_not_loaded_and_tried_again_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With LMCache's own controller: a declined load gives back its locks, or the chunks could never be evicted."""
    monkeypatch.setattr(RULE, "cost", CostModel())
    monkeypatch.setattr(RULE, "declined", 0)
    keys = make_object_keys(8)
    with manager(tmp_path) as first:
        write(first, keys)
        wait_until(lambda: stored(tmp_path) == 8)
    with manager(tmp_path, "tierserve") as second:
        for _ in range(ENOUGH):
            RULE.computed(512, 0.01)
            RULE.cost.observe_load("l2", 512, 5.0)
        attempts = 0
        while prefetch(second, keys) == (0, 0):
            attempts += 1
            assert attempts == RULE.declined
            (status,) = second.report_status()["l2_adapters"]
            assert status["locked_keys"] == 0
        assert attempts > 8, "declined, but not for ever"
        second.finish_read_prefetched(keys)
        assert prefetch(second, keys) == (8, 0), "what lies in L1 is used whatever L2 costs"
        second.finish_read_prefetched(keys)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _http(port: int, path: str, method: str = "GET", body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, method=method)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "LMCACHE_TRACK_USAGE": "false"}


def test_a_real_server_takes_the_plugin_json_unchanged(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    keys = make_object_keys(5)
    buffer = torch.zeros(5 * SIZE, dtype=torch.uint8)
    writer = CurvineL2Adapter({"path": str(pool)})
    assert Driver(writer).store(keys, make_memory_objects(buffer, 5, SIZE, 0)).is_successful()
    writer.close()
    port, http = _free_port(), _free_port()
    spec = PLUGIN.replace("DIR", str(pool))
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "lmcache.cli.main", "server", "--port", str(port), "--http-port", str(http)),
                *("--l1-size-gb", "0.05", "--eviction-policy", "LRU", "--no-l1-use-lazy", "--l2-adapter", spec),
                *("--supported-transfer-mode", "auto"),
            ],
            env=_environment(),
            stdout=log,
            stderr=log,
        )
    try:

        def listed() -> list[Any]:
            assert server.poll() is None, (tmp_path / "log").read_text()[-3000:]
            try:
                return list(_http(http, "/cache/objects?tier=l2&page_size=3")["entries"])
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                return []

        wait_until(lambda: len(listed()) == 3, 90)
        assert '"is_healthy": true' in json.dumps(_http(http, "/status")).lower()
        assert "curvine" in json.dumps(_http(http, "/status"))
    finally:
        server.terminate()
        try:
            server.wait(30)
        finally:
            server.kill()
    after = CurvineL2Adapter({"path": str(pool)})
    assert Driver(after).lookup(keys, LAYOUT) == list(range(5))
    after.close()


def test_lmcaches_own_benchmark_takes_it_and_verifies_the_bytes(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lmcache.cli.main", "bench", "l2", "--num-keys", "8", "--data-size-kb", "256"),
            *("--rounds", "2", "--no-skip-verify", "--lookup-max-hit-rate", "1.0"),
            *("--l2-adapter", PLUGIN.replace("DIR", str(tmp_path / "pool"))),
        ],
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "All 8 keys data verified OK" in output
    assert "MISMATCH" not in output
    assert "TIMEOUT" not in output
