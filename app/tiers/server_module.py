"""Our module inside LMCache's server: tells replicas what each lookup found, by tier.

Loaded by `--server-module` (a public extension point of LMCache 0.5.6). It listens on the server's event bus, whose
thread calls us; the bus drops events when it is overrun, so a report may be missing but is never wrong.
"""

from typing import Any

from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.multiprocess.ext_server_module import ExtServerModuleBuildContext

from app.tiers.events import EventPublisher, Lookup, encode_lookup


class TierEvents:
    """An LMCache engine module (`context`, `report_status`, `close`) that only publishes."""

    def __init__(self, build: ExtServerModuleBuildContext) -> None:
        self._context = build.server_context
        self._publisher = EventPublisher(build.config.get("host", "127.0.0.1"), int(build.config["port"]))
        self._lookups = 0
        build.server_context.event_bus.subscribe(EventType.MP_LOOKUP_PREFETCH_END, self._on_lookup)

    @property
    def context(self) -> Any:
        return self._context

    def report_status(self) -> dict[str, Any]:
        return {"tierserve_events": {"lookups": self._lookups, "dropped": self._publisher.dropped}}

    def close(self) -> None:
        self._publisher.close()

    def _on_lookup(self, event: Event) -> None:
        found = event.metadata
        lookup = Lookup(int(found.get("l1_hit_tokens", 0)), int(found.get("l2_hit_tokens", 0)))
        self._publisher.send(encode_lookup(event.session_id, lookup))
        self._lookups += 1


def build_server_modules(build: ExtServerModuleBuildContext) -> TierEvents:
    """The factory that `--server-module` names by default."""
    return TierEvents(build)
