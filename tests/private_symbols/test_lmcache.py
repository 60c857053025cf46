"""Private names of lmcache 0.5.6."""

import dataclasses
import inspect
import threading
from types import SimpleNamespace
from typing import Any

from tests.private_symbols.moved import moved, parameters

CONNECTOR, MODULE, GUARD = "app/tiers/connector.py", "app/tiers/server_module.py", "app/tiers/guarded_transfer.py"


def test_the_connector_keeps_an_adapter_for_each_role() -> None:
    from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector

    source = inspect.getsource(LMCacheMPConnector)
    for name in ("worker_adapter = LMCacheMPWorkerAdapter(", "scheduler_adapter = LMCacheMPSchedulerAdapter("):
        assert f"self.{name}" in source, moved(f"LMCacheMPConnector.{name.split()[0]}", CONNECTOR)


def test_the_worker_registers_by_a_method_that_the_heartbeat_calls_again() -> None:
    from lmcache.integration.vllm.vllm_multi_process_adapter import LMCacheMPWorkerAdapter

    register = LMCacheMPWorkerAdapter._send_register_kv_caches_request
    assert len(parameters(register)) == 2, moved("_send_register_kv_caches_request", CONNECTOR)
    heartbeat = inspect.getsource(LMCacheMPWorkerAdapter._ensure_heartbeat_started)
    recovery = inspect.getsource(LMCacheMPWorkerAdapter)
    assert "HeartbeatThread(" in heartbeat, moved("_ensure_heartbeat_started", CONNECTOR)
    assert recovery.count("self._send_register_kv_caches_request(") >= 2, moved(
        "registering again after a restart", CONNECTOR
    )


def test_adapters_keep_their_time_out_and_the_workers_health() -> None:
    from lmcache.integration.vllm.vllm_multi_process_adapter import (
        LMCacheMPSchedulerAdapter,
        LMCacheMPWorkerAdapter,
    )

    for adapter in (LMCacheMPWorkerAdapter, LMCacheMPSchedulerAdapter):
        assert "self._mq_timeout = mq_timeout" in inspect.getsource(adapter), moved("_mq_timeout", CONNECTOR)
    worker = inspect.getsource(LMCacheMPWorkerAdapter)
    assert "self._health_event = threading.Event()" in worker, moved("_health_event", CONNECTOR)
    assert "self.transfer_ctx = transfer_ctx" in worker, moved("transfer_ctx", CONNECTOR)


def test_transfers_keep_the_engines_context_and_their_time_out() -> None:
    from lmcache.v1.multiprocess.transfer_context import worker_transfer

    source = inspect.getsource(worker_transfer)
    assert "self._engine_driven_context = create_engine_driven_context(" in source, moved(
        "_engine_driven_context", CONNECTOR
    )
    assert "self._mq_timeout = mq_timeout" in source, moved("the GPU transfer's _mq_timeout", CONNECTOR)


def test_the_engines_context_has_the_four_methods_that_are_guarded() -> None:
    from lmcache.v1.multiprocess.transfer_context.base import EngineDrivenContext

    from app.tiers.guarded_transfer import _FAILURE, guard

    assert {*_FAILURE, "close"} == EngineDrivenContext.__abstractmethods__, moved("EngineDrivenContext", GUARD)

    class Context(EngineDrivenContext):  # type: ignore[misc]
        def prepare_store(self, key: Any, instance_id: int) -> Any:
            raise TimeoutError

        prepare_retrieve = commit_retrieve = prepare_store
        commit_store = prepare_store

        def close(self) -> None: ...

    context = Context(metadata=None, req_client=None, mq_timeout=300.0)
    guard(context, threading.Event(), 2.0)
    assert context.mq_timeout == 2.0, moved("EngineDrivenContext.mq_timeout", GUARD)
    assert context.prepare_store(None, 0) is None


def test_metrics_take_their_histogram_from_a_mapping() -> None:
    from lmcache.integration.vllm.lmcache_mp_metrics import LMCacheMPPromMetrics
    from prometheus_client import Counter, Gauge, Histogram

    from app.tiers.connector import _LOOKUP_BUCKETS_S, TierConnector

    assert parameters(LMCacheMPPromMetrics.__init__) == [
        *("self", "vllm_config", "metric_types", "labelnames", "per_engine_labelvalues")
    ], moved("LMCacheMPPromMetrics", CONNECTOR)
    made: list[dict[str, Any]] = []

    class Recorded:
        def __init__(self, **options: Any) -> None:
            made.append(options)

        def labels(self, *_: object) -> None: ...

    kinds = {Histogram: Recorded, Counter: Recorded, Gauge: Recorded}
    TierConnector.build_prom_metrics(SimpleNamespace(kv_transfer_config=None), kinds, ["engine"], {0: ["0"]})
    assert [options.get("buckets") for options in made if "lookup" in options["name"]] == [_LOOKUP_BUCKETS_S]


def test_a_lookups_end_says_what_each_tier_had() -> None:
    from lmcache.v1.mp_observability.event import Event, EventType
    from lmcache.v1.multiprocess.modules import lookup

    assert {"session_id", "metadata", "event_type"} <= {field.name for field in dataclasses.fields(Event)}, moved(
        "Event", MODULE
    )
    assert hasattr(EventType, "MP_LOOKUP_PREFETCH_END"), moved("MP_LOOKUP_PREFETCH_END", MODULE)
    source = inspect.getsource(lookup)
    published = source[source.index("event_type=EventType.MP_LOOKUP_PREFETCH_END") :][:800]
    for key in ('"l1_hit_tokens"', '"l2_hit_tokens"', "session_id=job.request_id"):
        assert key in published, moved(f"MP_LOOKUP_PREFETCH_END's {key}", MODULE)


def test_a_requests_salt_stands_in_its_tracker() -> None:
    from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector

    source = inspect.getsource(LMCacheMPConnector)
    made = inspect.getsource(LMCacheMPConnector._get_or_create_request_tracker)
    assert "LMCacheMPRequestTracker(request)" in made, moved("_get_or_create_request_tracker", CONNECTOR)
    assert source.count("self._get_or_create_request_tracker(request)") >= 2, moved("its callers", CONNECTOR)
    assert "cache_salt=tracker.cache_salt" in source, moved("LMCacheMPRequestTracker.cache_salt", CONNECTOR)


def test_l1_says_which_keys_it_stored_and_evicted() -> None:
    from lmcache.v1.distributed import l1_manager

    source = inspect.getsource(l1_manager)
    for kind in ("L1_WRITE_FINISHED,", "L1_WRITE_FINISHED_AND_READ_RESERVED,", "L1_KEYS_EVICTED,"):
        published = source[source.index(f"event_type=EventType.{kind}") :][:300]
        assert '"keys"' in published, moved(f"EventType.{kind}", MODULE)


def test_l2_tells_listeners_and_lists_its_adapters() -> None:
    from lmcache.v1.distributed.internal_api import L2AdapterListener
    from lmcache.v1.distributed.storage_manager import StorageManager

    from app.tiers.server_module import _L2Listener

    assert {name for name in vars(_L2Listener) if name.startswith("on_")} == L2AdapterListener.__abstractmethods__, (
        moved("L2AdapterListener", MODULE)
    )
    assert parameters(StorageManager.register_l2_listener) == ["self", "listener"], moved(
        "StorageManager.register_l2_listener", MODULE
    )
    assert hasattr(StorageManager, "l2_adapters"), moved("StorageManager.l2_adapters", MODULE)
