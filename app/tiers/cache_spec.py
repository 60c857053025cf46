"""What one LMCache server should be, and where it listens. Pure values: no lmcache, no ray."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from app.settings import ModelSettings


@dataclass(frozen=True)
class CacheSpec:
    """One L1 with its L2 behind it. Models of an application whose specs are equal share a server on each node."""

    l1_gib: float
    chunk_tokens: int
    eviction_policy: str
    workers: int
    device: Literal["cpu", "cuda"]
    l2_adapter: dict[str, Any] | None
    usage_stats: bool = False

    def key(self, application: str) -> str:
        """12 hex digits that name the server of `application` with this spec on any node."""
        text = json.dumps([application, asdict(self)], sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


@dataclass(frozen=True)
class CacheEndpoint:
    """Where a running server answers. All ports are on `host`, for the replicas of its node, except the last two:
    routers on other nodes follow them, so they are on `node_host`, and they tell nothing but hashes."""

    host: str
    port: int
    http_port: int
    events_port: int
    shm_name: str
    node_host: str = "127.0.0.1"
    tier_port: int = 0
    ask_port: int = 0

    @property
    def http_url(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    @property
    def events_url(self) -> str:
        return f"tcp://{self.host}:{self.events_port}"

    @property
    def tiers_url(self) -> str:
        return f"tcp://{self.node_host}:{self.tier_port}"

    @property
    def ask_url(self) -> str:
        return f"tcp://{self.node_host}:{self.ask_port}"


def cache_spec(model: ModelSettings, *, usage_stats: bool) -> CacheSpec | None:
    """The server that `model` wants on each of its nodes, or None with L1 off."""
    if not model.l1.enabled:
        return None
    return CacheSpec(
        l1_gib=model.l1.gib,
        chunk_tokens=model.l1.chunk_tokens,
        eviction_policy=model.l1.eviction_policy,
        workers=model.l1.workers,
        device="cpu" if model.on_cpu else "cuda",
        l2_adapter=_l2_adapter(model) if model.l2.enabled else None,
        usage_stats=usage_stats,
    )


def _l2_adapter(model: ModelSettings) -> dict[str, Any]:
    """The JSON of LMCache's --l2-adapter."""
    l2 = model.l2
    if l2.backend == "custom":
        assert l2.adapter is not None, l2
        return l2.adapter
    if l2.backend == "fs":
        return {"type": "fs", "base_path": str(l2.directory), "shared": True}
    return {
        "type": "curvine",
        "path": str(l2.directory),
        "shared": True,
        "capacity_gb": l2.capacity_gib,
        "chunk_size": model.l1.chunk_tokens,
        "prefill_tokens_per_s": l2.prefill_tokens_per_s,
        # LMCache's keys do not tell revisions of a model's weights apart; the pool's do.
        "revision": model.revision or "",
    }
