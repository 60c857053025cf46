"""Ray Serve's RequestRouter on top of RoutingCore: translates, and never lets anything out that could hang a request.

What Serve 2.60 expects and does not say (read in ray/serve/_private/request_router/request_router.py and router.py):
- An exception in `choose_replicas` is logged and its request waits for ever. So everything is caught, and load order
answers. - Inside a rank Serve takes the shortest queue: an order needs one replica per rank.
- When all ranks are full, Serve asks again at once unless `routing_context.should_backoff` is set: a busy loop.
- A caller that leaves between choice and sending is announced by nothing but its cancelled future.
- A rejected request completes on the replica that rejected it, possibly after it was sent to another.
Serve pickles this module by value, so it holds no state: that is in app.routing.registry.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, ParamSpec

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from app.cache_report import REPLICA_HEADER
from app.routing.core import RoutingCore
from app.routing.policy import Replica, Request
from app.routing.prompt import read_prompt
from app.routing.registry import open_core, tokenize
from app.serving.announcement import METADATA_KEY, ReplicaFeed
from app.serving.router_feed import Source, router_feed

logger = logging.getLogger("tierserve.routing")

P = ParamSpec("P")

TOKEN_IDS = "request_token_ids"
"""The keyword argument in which Ray's own KV-aware ingress hands over a tokenised prompt; ours may do the same."""


class TierRequestRouter(RequestRouter):
    """One per handle and process. Every method runs on the router's event loop, where it must take microseconds."""

    _core: RoutingCore
    _by_id: Mapping[str, RunningReplica] = {}
    _allow_pinning = False
    _model = ""
    """What requests that name no model mean."""
    _newest: tuple[str, "asyncio.Future[RunningReplica]"] | None = None
    """The last request chosen for, and the future that says where it goes, if we have not looked at it since."""

    def initialize_state(
        self,
        strategy: str = "prefix_aware",
        options: dict[str, Any] | None = None,
        log_decisions: bool = False,
        allow_pinning: bool = False,
        model: str = "",
        **unknown: Any,
    ) -> None:
        """Called once with `request_router_kwargs` (JSON). Wrong ones are logged and the defaults used: raising
        here, in every handle's process, would only turn a typing error into requests that hang. Settings are checked
        before deployment.
        """
        place = self._place()
        self._allow_pinning, self._model = allow_pinning, model
        if unknown:
            logger.error("unknown router options ignored: %s", ", ".join(sorted(unknown)))
        try:
            self._core = open_core(*place, strategy, options or {}, log_decisions=log_decisions)
        except Exception:
            logger.exception("router options refused, using prefix_aware with its defaults")
            self._core = open_core(*place, "prefix_aware", {}, log_decisions=log_decisions)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks, best first, one replica each; then everybody. Never raises, never waits for anything remote."""
        if pending_request is not None:
            context = pending_request.routing_context
            # Set by us alone: so this tells the first call for a request from all others without asking the core.
            is_first, context.should_backoff = not context.should_backoff, True
            try:
                core = self._core
                request = None if is_first else core.request(pending_request.metadata.internal_request_id)
                if request is None:
                    tokens = await self._tokens(pending_request) if core.tokens_wanted() else None
                    request = self._read(pending_request, tokens)
                if ranks := self._ranks(candidate_replicas, pending_request, request, is_first):
                    return ranks
            except Exception:
                logger.exception("routing failed, falling back to load order")
        return _two_at_random(candidate_replicas)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._by_id = {one.replica_id.unique_id: one for one in replicas}
        self._tell(RoutingCore.update_replicas, [_replica(one) for one in replicas])
        self._tell(lambda core: router_feed().follow(self._place(), core, _sources(replicas)))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._tell(RoutingCore.replica_died, replica_id.unique_id)

    # Serve calls these in the middle of its own bookkeeping: whatever goes wrong in ours must not reach it. Guarded in
    # place and not by `_tell`, which costs 0.2 us: they come with every request.

    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        if self._newest is not None:
            self._look_back()

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)
        try:
            self._core.observed(replica_id.unique_id, num_ongoing_requests)
        except Exception:
            self._failed()

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        super().on_request_routed(pending_request, replica_id, result)
        try:
            self._core.accepted(pending_request.metadata.internal_request_id, replica_id.unique_id)
        except Exception:
            self._failed()

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        super().on_request_completed(replica_id, internal_request_id)
        try:
            self._core.ended(internal_request_id, replica_id.unique_id)
        except Exception:
            self._failed()

    def _place(self) -> tuple[str, str]:
        return self._deployment_id.app_name, self._deployment_id.name

    # --- inside -----------------------------------------------------------------------------------------------------

    def _ranks(
        self, candidates: list[RunningReplica], pending: PendingRequest, request: Request, is_first: bool
    ) -> list[list[RunningReplica]]:
        adapter = pending.metadata.multiplexed_model_id
        preferred = (
            [one.replica_id.unique_id for one in candidates if adapter in one.multiplexed_model_ids] if adapter else ()
        )
        if self._newest is not None:
            self._look_back()
        # Asked before choosing: if it was chosen for before and is not sent yet, its future has our callback already.
        is_new = is_first or not self._core.is_pending(request.id)
        ranking = self._core.choose(request, preferred)
        if is_new:
            self._newest = request.id, pending.future
        here = self._by_id
        ranks = [[here[choice.replica]] for choice in ranking.choices if choice.replica in here]
        pinned = here.get(_header(pending, REPLICA_HEADER) or "") if self._allow_pinning else None
        if pinned is not None:
            return [[pinned]]
        # Only read by Serve if all of the above are full.
        return [*ranks, candidates] if ranks else []

    async def _tokens(self, pending: PendingRequest) -> Sequence[int] | None:
        """Token ids, for a strategy that wants them; unless they came with the request, made in a thread."""
        tokens: Sequence[int] | None = pending.kwargs.get(TOKEN_IDS)
        return await tokenize(*self._place(), _body(pending)) if tokens is None else tokens

    def _read(self, pending: PendingRequest, tokens: Sequence[int] | None) -> Request:
        meta = pending.metadata
        prompt = read_prompt(_body(pending), model=meta.multiplexed_model_id or self._model)
        return Request(
            meta.internal_request_id, prompt, meta.session_id or prompt.user or None, tokens, meta.request_id
        )

    def _look_back(self) -> None:
        """Where did the newest request go? Serve cancels its future when the caller leaves, and sets it to the replica
        that it is about to send to. Mostly that is right after the choice, and the sending is what comes next: then
        looking is enough, and saves the loop 1 us of a callback. Whatever else comes next, a callback will tell.
        """
        assert self._newest is not None
        (request_id, future), self._newest = self._newest, None
        if future.done():
            self._settle(request_id, future)
        else:
            future.add_done_callback(partial(self._settle, request_id))

    def _settle(self, request_id: str, future: "asyncio.Future[RunningReplica]") -> None:
        try:
            sent = not future.cancelled() and future.exception() is None
            self._core.settled(request_id, future.result().replica_id.unique_id if sent else None)
        except Exception:
            self._failed()

    def _tell(self, what: Callable[Concatenate[RoutingCore, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """For hooks that come seldom."""
        try:
            what(self._core, *args, **kwargs)
        except Exception:
            self._failed()

    def _failed(self) -> None:
        logger.exception("routing state could not be updated")


def _body(pending: PendingRequest) -> object:
    return pending.args[0] if pending.args else next(iter(pending.kwargs.values()), None)


def _header(pending: PendingRequest, name: str) -> str | None:
    """A header of the HTTP request behind `pending`: Ray Serve LLM's ingress passes it on as the second argument."""
    headers = getattr(pending.args[1], "headers", None) if len(pending.args) > 1 else None
    return headers.get(name) if isinstance(headers, Mapping) else None


def _sources(replicas: list[RunningReplica]) -> dict[str, Source]:
    """Where each replica is heard, by what it said of itself (TieredLLMServer.record_replica_metadata)."""
    sources = {}
    for one in replicas:
        feed = one.replica_metadata.get(METADATA_KEY)
        if feed:
            name = one.replica_id.unique_id
            sources[name] = Source(name, one.node_id or "", ReplicaFeed(**feed))
    return sources


def _replica(running: RunningReplica) -> Replica:
    return Replica(running.replica_id.unique_id, running.node_id or "", running.max_ongoing_requests)


def _two_at_random(candidates: list[RunningReplica]) -> list[list[RunningReplica]]:
    """Power of two choices: Serve takes the shorter queue of the first rank; the second is for when both are full."""
    if len(candidates) <= 2:
        return [list(candidates)] if candidates else []
    return [random.sample(candidates, 2), candidates]
