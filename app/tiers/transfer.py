"""How an engine is attached to its node's cache server: vLLM's `kv_transfer_config`. Pure values."""

from typing import Any

from app.tiers.cache_spec import CacheEndpoint

# How soon an engine sees that its server is gone (LMCache's default is 10 s).
HEARTBEAT_S = 1.0
# How long a starting engine waits for its server (LMCache's default is 300 s).
START_TIMEOUT_S = 60.0
# How long a serving engine waits for one answer before it goes on without it. The heartbeat takes at most twice
# HEARTBEAT_S to see that a server is gone; until then each answer that is waited for costs this.
ANSWER_TIMEOUT_S = 2.0


def transfer_config(at: CacheEndpoint) -> dict[str, Any]:
    """vLLM's `kv_transfer_config` for an engine whose node's server listens at `at`."""
    return {
        "kv_connector": "TierConnector",
        "kv_connector_module_path": "app.tiers.connector",
        "kv_role": "kv_both",
        # A chunk that cannot be loaded is computed instead; the default fails the request.
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "lmcache.mp.host": f"tcp://{at.host}",
            "lmcache.mp.port": at.port,
            "lmcache.mp.heartbeat_interval": HEARTBEAT_S,
            "lmcache.mp.mq_timeout": START_TIMEOUT_S,
        },
    }
