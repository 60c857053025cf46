"""The adapter keeps what LMCache's controllers assume."""

import json
import os
import select
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from lmcache.cli.commands.bench.l2_adapter_bench.data import make_memory_objects, make_object_keys  # noqa: E402
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey  # noqa: E402
from lmcache.v1.distributed.internal_api import L2AdapterListener  # noqa: E402
from lmcache.v1.distributed.l2_adapters import create_l2_adapter  # noqa: E402
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class  # noqa: E402
from lmcache.v1.distributed.storage_controllers.prefetch_policy import create_prefetch_policy  # noqa: E402
from lmcache.v1.platform import consume_fd  # noqa: E402

from app.errors import PoolError  # noqa: E402
from app.tiers.curvine import adapter as curvine  # noqa: E402
from app.tiers.curvine.adapter import CurvineL2Adapter  # noqa: E402
from tests.tiers.curvine.mounts import wait_until  # noqa: E402

SIZE = 10_000
LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([SIZE])], dtypes=[torch.uint8])
PLUGIN = """{"type":"plugin","module_path":"app.tiers.curvine.adapter","class_name":"CurvineL2Adapter",
"adapter_params":{"path":"DIR"}}"""


class Driver:
    """Submits and waits as the controllers do: poll the descriptor first, then ask."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter

    def store(self, keys: list[ObjectKey], objects: list[Any]) -> Any:
        task = self.adapter.submit_store_task(keys, objects)
        wait_fd(self.adapter.get_store_event_fd())
        return self.adapter.pop_completed_store_tasks()[task]

    def lookup(self, keys: list[ObjectKey], layout: MemoryLayoutDesc = LAYOUT) -> list[int]:
        task = self.adapter.submit_lookup_and_lock_task(keys, {0: layout})
        wait_fd(self.adapter.get_lookup_and_lock_event_fd())
        bitmap = self.adapter.query_lookup_and_lock_result(task)
        assert self.adapter.query_lookup_and_lock_result(task) is None, "delivered once"
        return list(bitmap.get_indices_list())

    def load(self, keys: list[ObjectKey], objects: list[Any]) -> list[int]:
        task = self.adapter.submit_load_task(keys, objects)
        wait_fd(self.adapter.get_load_event_fd())
        bitmap = self.adapter.query_load_result(task)
        assert self.adapter.query_load_result(task) is None, "delivered once"
        return list(bitmap.get_indices_list())


def wait_fd(fd: int) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    assert poller.poll(20_000), "no completion"
    consume_fd(fd)


class Listener(L2AdapterListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.stored: dict[ObjectKey, int] = {}
        self.deleted: list[ObjectKey] = []
        self.accessed: list[ObjectKey] = []

    def on_l2_keys_stored(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        self.stored.update(zip(keys, sizes, strict=True))

    def on_l2_keys_accessed(self, keys: list[ObjectKey]) -> None:
        self.accessed += keys

    def on_l2_keys_deleted(self, keys: list[ObjectKey]) -> None:
        self.deleted += keys


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    yield from _driver({"path": str(tmp_path / "pool"), "tick_s": 0.05})


def _driver(params: dict[str, Any]) -> Iterator[Driver]:
    driver = Driver(CurvineL2Adapter(params))
    yield driver
    driver.adapter.check_integrity()
    driver.adapter.close()
    driver.adapter.close()


@pytest.fixture
def memory() -> tuple[Any, list[Any], Any, list[Any]]:
    source = torch.zeros(8 * SIZE, dtype=torch.uint8)
    target = torch.zeros(8 * SIZE, dtype=torch.uint8)
    return source, make_memory_objects(source, 8, SIZE, 0, 1), target, make_memory_objects(target, 8, SIZE, 0)


def test_round_trip(driver: Driver, memory: Any) -> None:
    source, objects, target, into = memory
    keys = make_object_keys(8)
    listener = Listener()
    driver.adapter.register_listener(listener)
    result = driver.store(keys, objects)
    assert result.is_successful()
    assert result.bytes_transferred() > 8 * SIZE
    assert driver.store(keys, objects).bytes_transferred() == 0, "stored once"
    assert driver.lookup(keys) == list(range(8))
    assert driver.load(keys, into) == list(range(8))
    assert torch.equal(source, target)
    wait_until(lambda: listener.accessed == keys)  # told after the answer: no request waits for listeners
    assert sum(listener.stored.values()) == 0, "the second store adds nothing"
    driver.adapter.submit_unlock(keys)


def test_a_gap_and_another_layout_are_misses(driver: Driver, memory: Any) -> None:
    _, objects, _, into = memory
    keys = make_object_keys(8)
    driver.store(keys[:3] + keys[5:], objects[:6])
    assert driver.lookup(keys) == [0, 1, 2, 5, 6, 7]
    assert driver.load(keys, into) == [0, 1, 2, 5, 6, 7]
    other = MemoryLayoutDesc(shapes=[torch.Size([SIZE // 2])], dtypes=[torch.float16])
    unused = CurvineL2Adapter({"path": driver.adapter.report_status()["path"], "janitor": "off"})
    assert Driver(unused).lookup(keys, other) == [], "a server that never used the other layout does not find it"
    unused.close()


def test_the_three_descriptors_differ(driver: Driver, tmp_path: Path) -> None:
    other = CurvineL2Adapter({"path": str(tmp_path / "other")})
    fds = [
        fd
        for adapter in (driver.adapter, other)
        for fd in (
            adapter.get_store_event_fd(),
            adapter.get_lookup_and_lock_event_fd(),
            adapter.get_load_event_fd(),
        )
    ]
    assert len(set(fds)) == 6
    other.close()


def test_locked_keys_are_not_deleted_until_the_last_unlock(driver: Driver, memory: Any) -> None:
    keys = make_object_keys(2)
    listener = Listener()
    driver.adapter.register_listener(listener)
    driver.store(keys, memory[1][:2])
    driver.lookup(keys[:1])
    driver.lookup(keys[:1])
    driver.adapter.delete(keys)
    assert listener.deleted == keys[1:]
    driver.adapter.submit_unlock(keys[:1])
    driver.adapter.delete(keys)
    assert driver.lookup(keys[1:]) == []
    driver.adapter.submit_unlock(keys[:1])
    driver.adapter.delete(keys)
    assert listener.deleted == [keys[1], keys[0]]
    driver.adapter.submit_unlock(make_object_keys(1, key_offset=99))


def test_listing_pages_through_everything(driver: Driver, memory: Any) -> None:
    keys = make_object_keys(8)
    driver.store(keys, memory[1])
    seen, cursor = [], None
    while True:
        page = driver.adapter.list_l2_keys(page_size=3, cursor=cursor)
        seen += [entry.key.to_object_key() for entry in page.entries]
        cursor = page.next_page_token
        if cursor is None:
            break
    assert sorted(key.chunk_hash for key in seen) == sorted(key.chunk_hash for key in keys)
    assert set(seen) == set(keys)
    assert driver.adapter.list_l2_keys(model_name="other").entries == ()
    for bad in ({"page_size": 0}, {"cursor": "../x"}):
        with pytest.raises(ValueError):
            driver.adapter.list_l2_keys(**bad)


def test_what_is_on_disk_counts_after_a_restart(tmp_path: Path, memory: Any) -> None:
    keys = make_object_keys(8)
    path = str(tmp_path / "pool")
    first = CurvineL2Adapter({"path": path, "tick_s": 0.05})
    Driver(first).store(keys, memory[1])
    first.close()
    second = CurvineL2Adapter({"path": path, "tick_s": 0.05})
    listener = Listener()
    second.register_listener(listener)
    wait_until(lambda: second.get_usage().total_bytes_used > 8 * SIZE)
    wait_until(lambda: sum(second.get_usage().bytes_by_cache_salt.values()) > 8 * SIZE)
    assert Driver(second).lookup(keys) == list(range(8))
    second.submit_unlock(keys)
    second.delete(keys)
    assert Driver(second).lookup(keys) == []
    second.close()


def test_status_is_plain_and_says_what_matters(driver: Driver, memory: Any) -> None:
    driver.store(make_object_keys(8), memory[1])
    wait_until(lambda: driver.adapter.report_status()["housekeeping"]["is_janitor"])
    status = json.loads(json.dumps(driver.adapter.report_status()))
    assert status["is_healthy"] is True
    assert status["breaker"]["state"] == "closed"
    assert status["pool"]["puts"] == {"stored": 8}


def test_eviction_by_another_server_is_announced_here(tmp_path: Path, memory: Any) -> None:
    path = str(tmp_path / "pool")
    params = {"path": path, "tick_s": 0.02, "capacity_gb": 300_000 / 1024**3, "min_free_fraction": 0.0}
    janitor = CurvineL2Adapter(params)
    wait_until(lambda: janitor.report_status()["housekeeping"]["is_janitor"])
    writer = CurvineL2Adapter(params)
    listener = Listener()
    writer.register_listener(listener)
    number = 0

    def store_until_something_goes() -> bool:
        nonlocal number
        number += 1
        Driver(writer).store(make_object_keys(1, key_offset=number), memory[1][:1])
        return bool(listener.deleted)

    wait_until(store_until_something_goes, 60)
    assert set(listener.deleted) <= set(listener.stored)
    assert janitor.get_usage().total_bytes_used <= 300_000
    writer.close()
    janitor.close()


def test_a_listener_that_raises_loses_no_completion(driver: Driver, memory: Any) -> None:
    class Bad(Listener):
        def on_l2_keys_stored(self, keys: list[ObjectKey], sizes: list[int]) -> None:
            raise RuntimeError("listener")

    driver.adapter.register_listener(Bad())
    assert driver.store(make_object_keys(2), memory[1][:2]).is_successful()


def test_directory_removed_and_made_again_under_a_running_server(driver: Driver, memory: Any) -> None:
    keys = make_object_keys(8)
    driver.store(keys, memory[1])
    root = driver.adapter.report_status()["path"]
    shutil.rmtree(root, ignore_errors=True)
    assert driver.lookup(keys) == []
    assert driver.load(keys, memory[3]) == []
    assert driver.store(keys, memory[1]).is_successful()
    assert driver.lookup(keys) == list(range(8))
    driver.adapter.submit_unlock(keys)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"path": ""},
        {"path": 3},
        {"path": "x", "unknown": 1},
        {"path": "x", "capacity_gb": "1"},
        {"path": "x", "recover": 1},
    ],
)
def test_wrong_options_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        curvine.CurvineL2AdapterConfig.from_dict(params)


def test_a_path_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PoolError):
        CurvineL2Adapter({"path": str(tmp_path / "file")})


def test_lmcache_makes_it_from_the_plugin_json_and_by_name(tmp_path: Path) -> None:
    curvine.register()
    curvine.register()
    spec = json.loads(PLUGIN.replace("DIR", str(tmp_path / "a")))
    adapter = create_l2_adapter(get_l2_adapter_config_class("plugin").from_dict(spec))
    assert isinstance(adapter, CurvineL2Adapter)
    adapter.close()
    spec = {"type": "curvine", "path": str(tmp_path / "b"), "shared": True, "eviction": None}
    adapter = create_l2_adapter(get_l2_adapter_config_class("curvine").from_dict(spec))
    assert isinstance(adapter, CurvineL2Adapter)
    adapter.close()
    assert os.path.isdir(tmp_path / "b" / "chunks")


def test_the_prefetch_policy_keeps_what_is_loaded() -> None:
    curvine.register()
    policy = create_prefetch_policy("tierserve")
    assert policy.plan_l1_retention(make_object_keys(3), None, None) == [True] * 3
