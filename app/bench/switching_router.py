"""A request router that becomes another one when a file says so: strategies take turns in front of the same engines.

A changed `request_router_config` makes Serve (ray 2.60.0) start every replica anew, which takes a minute and empties
the caches. Here each phase gets a whole router of its own, made as Serve makes it and fed with what Serve says; this
class only passes calls on. It overrides what Serve calls of a router; tests/bench/test_switching_router.py fails
when that grows.
"""

import importlib
import json
from pathlib import Path
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from app.routing.registry import close_core


class SwitchingRouter(RequestRouter):  # type: ignore[misc]
    """Configured by `control`: a file with `{"router": "module:Class", "kwargs": {...}, "phase": ANY}`. A router is
    made anew whenever its content changes."""

    def __init__(self, **made_with: Any) -> None:
        super().__init__(**made_with)
        self._made_with = made_with
        self._control = Path()
        self._content = ""
        self._inner: RequestRouter | None = None
        self._running: list[Any] = []

    def initialize_state(self, control: str) -> None:
        self._control = Path(control)

    @property
    def curr_replicas(self) -> dict[ReplicaID, RunningReplica]:
        replicas: dict[ReplicaID, RunningReplica] = self._current().curr_replicas
        return replicas

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        raise AssertionError("the router of the phase chooses")

    async def _choose_replica_for_request(self, *args: Any, **kwargs: Any) -> Any:
        return await self._current()._choose_replica_for_request(*args, **kwargs)

    def _update_running_replicas(self, running: list[Any]) -> None:
        self._running = running
        self._current()._update_running_replicas(running)

    def on_send_request(self, *args: Any) -> None:
        self._current().on_send_request(*args)

    def on_request_routed(self, *args: Any) -> None:
        self._current().on_request_routed(*args)

    def on_request_completed(self, *args: Any) -> None:
        self._current().on_request_completed(*args)

    def on_new_queue_len_info(self, *args: Any) -> None:
        self._current().on_new_queue_len_info(*args)

    def on_replica_actor_died(self, *args: Any) -> None:
        self._current().on_replica_actor_died(*args)

    def on_replica_actor_unavailable(self, *args: Any) -> None:
        self._current().on_replica_actor_unavailable(*args)

    def decrement_queue_len_cache(self, *args: Any) -> None:
        self._current().decrement_queue_len_cache(*args)

    def update_backoff_params(self, *args: Any, **kwargs: Any) -> None:
        self._current().update_backoff_params(*args, **kwargs)

    def _current(self) -> RequestRouter:
        """Reads the file for each call: 20 us, the same for every strategy."""
        content = self._control.read_text()
        if self._inner is None or content != self._content:
            self._content = content
            self._inner = self._make(**json.loads(content))
        return self._inner

    def _make(self, router: str, kwargs: dict[str, Any], phase: object) -> RequestRouter:
        module, _, name = router.partition(":")
        close_core(self._deployment_id.app_name, self._deployment_id.name)
        made: RequestRouter = getattr(importlib.import_module(module), name)(**self._made_with)
        made.initialize_state(**kwargs)
        made._update_running_replicas(self._running)
        return made
