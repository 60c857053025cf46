"""What one request costs the event loop that routes it: our router class and Ray's, driven by the same calls.

Both are the real classes, over stand-ins for replicas, and both are called as Serve 2.60 calls a router for one
request (`AsyncioRouter._route_and_send_request_once`): choose, settle the future that the caller waits for, sent,
accepted, and the end of an earlier request, so that about four are in flight on each replica. What is counted is the
time in which the loop could do nothing else: wall time less the time it waited in its selector. What is awaited is
not counted, what blocks is. What Serve does around every router alike is left out: its tasks and queues of pending
requests, and sending.

What PrefixCacheAffinityRouter (ray 2.60.0) does there for one request, as read:

- `choose_replicas`: two random replicas and a list of all; the text of the request; every replica's queue length out
  of the cache, every replica's id as text; `ray.get` of the actor's `prefix_match`. Below a tenth of a match, a second
  `ray.get`, for the smallest tenants: here only the first request of each prefix pays it.
- `on_request_routed`: the text once more, `ray.get` of the actor's `insert`. The other hooks are Serve's own.

So the two blocking calls are nearly all of it: compare `ray_router_us` with `ray_actor_us`, which is those two alone.
It is Ray's best case: queue lengths are always fresh (it would ask every replica whose length is older than 10 s),
and the actor is on the same machine and serves one router alone.
"""

import asyncio
import selectors
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pydantic
from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    ReplicaID,
    RequestMetadata,
    RunningReplicaInfo,
)
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

_MB = 1 << 20
_DEPLOYMENT = DeploymentID(name="LLM", app_name="bench")
_IN_FLIGHT = 4
"""Requests on each replica, on average."""


@contextmanager
def private_ray() -> Iterator[None]:
    """A small Ray of our own; another one on this machine is none of our business."""
    import ray

    # A short directory: socket paths are limited.
    with tempfile.TemporaryDirectory(prefix="tsb", dir="/tmp", ignore_cleanup_errors=True) as directory:
        ray.init(
            address="local",
            num_cpus=1,
            include_dashboard=False,
            _temp_dir=directory,
            log_to_driver=False,
            logging_level="error",
            object_store_memory=100 * _MB,
        )
        try:
            yield
        finally:
            ray.shutdown()


def actor_calls(replicas: int) -> Callable[[str], None]:
    """Only the two blocking calls that Ray's router makes to its tree actor for one request. Needs a Ray."""
    import ray
    from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTreeActor

    names = [f"replica-{number}" for number in range(replicas)]
    actor = PrefixTreeActor.remote()
    ray.get(actor.add_tenants.remote(names, 0.0))

    def once(text: str, turn: list[int] = [0]) -> None:  # noqa: B006
        ray.get(actor.prefix_match.remote(text, names))
        ray.get(actor.insert.remote(text, names[turn[0] % replicas], float(turn[0])))
        turn[0] += 1

    return once


def event_loop_us(texts: Sequence[str], replicas: int, rounds: int) -> dict[str, float]:
    """Median microseconds of the event loop per request, each router seeing all texts, a share at a time in turn: ours,
    Ray's prefix router, and Serve's default one, which keeps no prefixes. Needs a Ray.
    """
    waiting = _WaitingTime()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(waiting)) as runner:
        return runner.run(_alternate(texts, replicas, rounds, waiting))


class _WaitingTime(selectors.DefaultSelector):
    """The loop's selector, which adds up the seconds in which the loop had nothing to do."""

    seconds = 0.0

    def select(self, timeout: float | None = None) -> Any:
        started = time.perf_counter()
        try:
            return super().select(timeout)
        finally:
            self.seconds += time.perf_counter() - started


class _Body(pydantic.BaseModel):
    """As Ray Serve LLM's ingress hands requests on: an object with fields. Ray's router reads nothing else."""

    model: str
    prompt: str
    user: str | None = None


class _StandIn(RunningReplica):  # type: ignore[misc]
    """A replica as routers see it, without the actor behind it."""

    def __init__(self, number: int) -> None:
        self._replica_info = RunningReplicaInfo(
            replica_id=ReplicaID(f"r{number:07d}", _DEPLOYMENT),
            node_id=f"node-{number // 8}",
            node_ip="127.0.0.1",
            availability_zone=None,
            actor_name="",
            max_ongoing_requests=1_000,
        )
        self._multiplexed_model_ids: set[str] = set()

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return 0


class _Driven:
    """A router with its replicas, and requests in flight on them."""

    def __init__(self, router: type[RequestRouter], replicas: list[_StandIn], waiting: _WaitingTime, **kwargs: Any):
        self._router = router(
            deployment_id=_DEPLOYMENT,
            handle_source=DeploymentHandleSource.REPLICA,
            self_node_id="node-0",
            use_replica_queue_len_cache=True,
            prefer_local_node_routing=False,
            prefer_local_az_routing=False,
        )
        self._router.initialize_state(**kwargs)
        self._router.update_replicas(replicas)
        self._replicas, self._waiting = replicas, waiting
        self._open: deque[tuple[ReplicaID, str]] = deque()
        self._ongoing = dict.fromkeys((replica.replica_id for replica in replicas), 0)
        self._turn = 0

    def refresh(self) -> None:
        for replica, ongoing in self._ongoing.items():
            self._router.replica_queue_len_cache.update(replica, ongoing)

    async def seconds(self, text: str) -> float:
        """The event loop's, for one request."""
        router, name = self._router, str(self._turn)
        self._turn += 1
        pending = PendingRequest([_Body(model="m", prompt=text)], {}, RequestMetadata(f"trace-{name}", name))
        await asyncio.sleep(0)  # whatever was still to run is not this request's
        waited, started = self._waiting.seconds, time.perf_counter()

        ranks = await router.choose_replicas(self._router._replicas_list, pending)
        chosen = ranks[0][0]
        pending.future.set_result(chosen)
        await asyncio.sleep(0)  # the future's callbacks
        replica = chosen.replica_id
        router.on_send_request(replica)
        self._ongoing[replica] += 1
        router.on_new_queue_len_info(replica, self._ongoing[replica])
        router.on_request_routed(pending, replica, None)
        self._open.append((replica, name))
        if len(self._open) > _IN_FLIGHT * len(self._replicas):
            ended, earlier = self._open.popleft()
            self._ongoing[ended] -= 1
            router.on_request_completed(ended, earlier)
            router.decrement_queue_len_cache(ended)

        return time.perf_counter() - started - (self._waiting.seconds - waited)


async def _alternate(texts: Sequence[str], replicas: int, rounds: int, waiting: _WaitingTime) -> dict[str, float]:
    from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter
    from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTreeActor
    from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter

    from app.routing.registry import close_core
    from app.serving.router import TierRequestRouter

    fleet = [_StandIn(number) for number in range(replicas)]
    close_core(_DEPLOYMENT.app_name, _DEPLOYMENT.name)
    driven = {
        "router_us": _Driven(TierRequestRouter, fleet, waiting),
        "ray_router_us": _Driven(PrefixCacheAffinityRouter, fleet, waiting, tree_actor=PrefixTreeActor.remote()),
        "power_of_two_us": _Driven(PowerOfTwoChoicesRequestRouter, fleet, waiting),
    }
    times: dict[str, list[float]] = {name: [] for name in driven}
    share = len(texts) // rounds
    for start in range(0, share * rounds, share):
        for name, router in driven.items():
            router.refresh()
            for text in texts[start : start + share]:
                times[name].append(await router.seconds(text))
    close_core(_DEPLOYMENT.app_name, _DEPLOYMENT.name)
    return {name: 1e6 * statistics.median(each) for name, each in times.items()}
