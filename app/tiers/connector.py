"""Our vLLM KV connector: LMCache's multi-process connector with its defects mended (lmcache 0.5.6, vllm 0.29.0).

- Its histogram has no buckets, which Ray's metrics refuse: engines with `log_engine_metrics` (the default) do not start.
- Its heartbeat starts with the first store, so a server that is restarted before that is never registered with again.
- Its time-outs and load-failure policy default to minutes of waiting and a failed request: app.tiers.transfer sets ours.

Named in vLLM by `kv_connector` and `kv_connector_module_path`; it must be importable in the engine's processes.
"""

import functools
from typing import Any

from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector
from lmcache.integration.vllm.lmcache_mp_metrics import LMCacheMPPromMetrics
from prometheus_client import Histogram

_LOOKUP_BUCKETS_S = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]


class TierConnector(LMCacheMPConnector):  # type: ignore[misc]
    """vLLM calls it from the scheduler (role SCHEDULER) and from each worker (role WORKER); see LMCacheMPConnector."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        self.worker_adapter._ensure_heartbeat_started()

    @classmethod
    def build_prom_metrics(cls, *args: Any, **kwargs: Any) -> Any:
        return _BucketedMetrics(*args, **kwargs)


class _BucketedMetrics(LMCacheMPPromMetrics):  # type: ignore[misc]
    """LMCache's metrics, made with a histogram class that has buckets."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any) -> None:
        bucketed = functools.partial(metric_types[Histogram], buckets=_LOOKUP_BUCKETS_S)
        super().__init__(vllm_config, {**metric_types, Histogram: bucketed}, labelnames, per_engine_labelvalues)
