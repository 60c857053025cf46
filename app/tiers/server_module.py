"""Our module inside LMCache's server: tells replicas what each lookup found, and routers what L1 and L2 hold.

Loaded by `--server-module` (a public extension point of LMCache 0.5.6). It listens on the server's event bus, whose
thread calls us, and to L2's adapters, whose threads call us. The bus drops events when it is overrun: a lookup's report
may then be missing but is never wrong, and L1's holdings are forgotten, since what went unheard may have been a
removal.
"""

from collections.abc import Iterable
from typing import Any

from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L2AdapterListener
from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.multiprocess.ext_server_module import ExtServerModuleBuildContext

from app.tier_events import Scope
from app.tiers.events import EventPublisher, Lookup, encode_lookup
from app.tiers.holdings import Held
from app.tiers.loading import RULE
from app.tiers.tier_publisher import TierPublisher


class TierEvents:
    """An LMCache engine module (`context`, `report_status`, `close`) that only publishes."""

    def __init__(self, build: ExtServerModuleBuildContext) -> None:
        self._context = build.server_context
        config = build.config
        self._publisher = EventPublisher(config.get("host", "127.0.0.1"), int(config["port"]))
        node_host = config.get("node_host", "127.0.0.1")
        RULE.chunk_tokens = int(config.get("chunk_tokens", RULE.chunk_tokens))
        self._tiers = TierPublisher(
            node_host,
            int(config["tier_port"]),
            int(config["ask_port"]),
            lambda prefill: RULE.computed(prefill.tokens, prefill.seconds),
        )
        self._lookups = 0
        bus, storage = build.server_context.event_bus, build.server_context.storage_manager
        bus.subscribe(EventType.MP_LOOKUP_PREFETCH_END, self._on_lookup)
        for stored in (EventType.L1_WRITE_FINISHED, EventType.L1_WRITE_FINISHED_AND_READ_RESERVED):
            bus.subscribe(stored, lambda event: self._tiers.stored("l1", _held(event.metadata["keys"])))
        bus.subscribe(EventType.L1_KEYS_EVICTED, lambda event: self._tiers.removed("l1", _held(event.metadata["keys"])))
        bus.subscribe_drops(lambda: self._tiers.lost("l1"))
        bus.subscribe(EventType.L2_LOAD_TASK_SUBMITTED, _on_load_began)
        bus.subscribe(EventType.L2_LOAD_TASK_COMPLETED, _on_load_ended)
        storage.register_l2_listener(_L2Listener(self._tiers))
        for _, adapter in storage.l2_adapters():
            known = getattr(adapter, "known_keys", None)  # ours; others say nothing of what they found on disk
            if known is not None:
                self._tiers.stored("l2", _held(known()))

    @property
    def context(self) -> Any:
        return self._context

    def report_status(self) -> dict[str, Any]:
        status = {"lookups": self._lookups, "dropped": self._publisher.dropped, **self._tiers.status(), **RULE.status()}
        return {"tierserve_events": status}

    def close(self) -> None:
        self._publisher.close()
        self._tiers.close()

    def _on_lookup(self, event: Event) -> None:
        found = event.metadata
        lookup = Lookup(int(found.get("l1_hit_tokens", 0)), int(found.get("l2_hit_tokens", 0)))
        self._publisher.send(encode_lookup(event.session_id, lookup))
        self._lookups += 1


def _on_load_began(event: Event) -> None:
    task = event.metadata
    RULE.load_began((task["adapter_index"], task["task_id"]), int(task["key_count"]), event.timestamp)


def _on_load_ended(event: Event) -> None:
    task = event.metadata
    RULE.load_ended((task["adapter_index"], task["task_id"]), event.timestamp)


class _L2Listener(L2AdapterListener):  # type: ignore[misc]
    """LMCache calls it from the adapters' threads, under no lock of theirs."""

    def __init__(self, tiers: TierPublisher) -> None:
        self._tiers = tiers

    def on_l2_keys_stored(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        self._tiers.stored("l2", _held(keys))

    def on_l2_keys_accessed(self, keys: list[ObjectKey]) -> None:
        """Whoever was asked and had it: also what other servers stored is learned this way."""
        self._tiers.stored("l2", _held(keys))

    def on_l2_keys_deleted(self, keys: list[ObjectKey]) -> None:
        self._tiers.removed("l2", _held(keys))


def _held(keys: Iterable[ObjectKey]) -> list[Held]:
    return [(Scope(key.model_name, key.cache_salt), key.chunk_hash) for key in keys]


def build_server_modules(build: ExtServerModuleBuildContext) -> TierEvents:
    """The factory that `--server-module` names by default."""
    return TierEvents(build)
