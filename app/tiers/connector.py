"""Our vLLM KV connector: LMCache's multi-process connector with its defects mended (lmcache 0.5.6, vllm 0.29.0).

- Its histogram has no buckets, which Ray's metrics refuse: with `log_engine_metrics` (the default) no engine starts.
- Its heartbeat starts with the first store, so a server that is restarted before that is never registered with again.
- Its keys leave out the LoRA adapter and prompt embeddings: they go into the salt (app/kv_salt.py).
- It has one time-out for starting (where minutes are fine) and for each answer on a request's way (where an engine on
  CPU stands still meanwhile): the latter is shortened once the engine is registered, and guarded (guarded_transfer).

Named in vLLM by `kv_connector` and `kv_connector_module_path`; it must be importable in the engine's processes.
"""

import functools
from typing import Any

from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector
from lmcache.integration.vllm.lmcache_mp_metrics import LMCacheMPPromMetrics
from prometheus_client import Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from app.kv_salt import adapter_identity, kv_salt
from app.tiers.guarded_transfer import guard
from app.tiers.transfer import ANSWER_TIMEOUT_S

_LOOKUP_BUCKETS_S = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]


class TierConnector(LMCacheMPConnector):
    """vLLM calls it from the scheduler (role SCHEDULER) and from each worker (role WORKER); see LMCacheMPConnector."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler_adapter._mq_timeout = ANSWER_TIMEOUT_S

    def _get_or_create_request_tracker(self, request: Any) -> Any:
        # The tracker's salt is what every lookup, store and load of the request is keyed by.
        tracker = super()._get_or_create_request_tracker(request)
        lora = request.lora_request
        adapter = adapter_identity(lora.lora_name, lora.lora_path) if lora is not None else None
        unshared = request.request_id if request.prompt_embeds is not None else None
        tracker.cache_salt = kv_salt(request.cache_salt, adapter, unshared)
        return tracker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        adapter = self.worker_adapter
        register = adapter._send_register_kv_caches_request

        def register_and_guard(caches: dict[str, Any]) -> None:  # the heartbeat calls it again after each restart
            register(caches)
            _shorten_and_guard(adapter)

        adapter._send_register_kv_caches_request = register_and_guard
        super().register_kv_caches(kv_caches)
        adapter._mq_timeout = ANSWER_TIMEOUT_S
        adapter._ensure_heartbeat_started()

    @classmethod
    def build_prom_metrics(cls, *args: Any, **kwargs: Any) -> Any:
        return _BucketedMetrics(*args, **kwargs)


def _shorten_and_guard(adapter: Any) -> None:
    """Give the transfer context that `adapter` has just made our time-out, and on CPU the guard."""
    transfer = adapter.transfer_ctx
    context = getattr(transfer, "_engine_driven_context", None)
    if context is not None:
        guard(context, adapter._health_event, ANSWER_TIMEOUT_S)
    elif hasattr(transfer, "_mq_timeout"):
        transfer._mq_timeout = ANSWER_TIMEOUT_S


class _BucketedMetrics(LMCacheMPPromMetrics):
    """LMCache's metrics, made with a histogram class that has buckets."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any) -> None:
        bucketed = functools.partial(metric_types[Histogram], buckets=_LOOKUP_BUCKETS_S)
        super().__init__(vllm_config, {**metric_types, Histogram: bucketed}, labelnames, per_engine_labelvalues)
