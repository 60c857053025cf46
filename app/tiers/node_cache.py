"""One LMCache server per Ray node and cache specification, kept alive by a named actor that is pinned to the node.

Replicas attach when they start and renew their lease while they live; the actor restarts a dead server on the same
ports (engines reconnect by themselves) and ends with its last lease. It is detached, because an actor that belonged to
the replica that happened to create it would take everybody's L1 with it.

    idle --attach--> serving --server dies--> quiet --QUIET_S--> serving
                        └──no lease for LEASE_S──> gone (server stopped, segment removed, actor exited)
"""

import asyncio
import json
import logging
import tempfile
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from app.errors import ServingError
from app.ray_metrics import RayMetrics
from app.tiers import cache_metrics
from app.tiers.cache_server import CacheServer, new_endpoint, segment_name, sweep_segments
from app.tiers.cache_spec import CacheEndpoint, CacheSpec
from app.tiers.leases import Leases
from app.tiers.loopback_http import LOOPBACK
from app.tiers.node_host import node_host
from app.tiers.pulse import Pulse
from app.tiers.transfer import HEARTBEAT_S

NAMESPACE = "tierserve"
LEASE_S = 30.0
RENEW_S = 5.0
_WATCH_S = 0.5
# Engines register with a server again only after they have seen it gone. A restart between two of their heartbeats
# would go unseen: they would then use a server that does not know their memory. So a dead server stays dead this long.
QUIET_S = 3 * HEARTBEAT_S
# A server that answers nothing for this long although its process lives is killed and started again.
_HUNG_S = 10.0
_METRICS_S = 5.0

logger = logging.getLogger(__name__)


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=3)
class NodeCache:
    """The actor. Async: every method runs on one event loop, blocking work in threads."""

    def __init__(self, key: str, spec: CacheSpec, application: str) -> None:
        self._key, self._spec, self._application = key, spec, application
        self._leases = Leases(LEASE_S)
        self._server: CacheServer | None = None
        self._starting = asyncio.Lock()
        self._restarts = 0
        self._down = False
        self._answered_at = 0.0
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._http = httpx.AsyncClient(**LOOPBACK)

    async def attach(self, holder: str) -> CacheEndpoint:
        """Lease the server for `holder`, starting it if need be. Raises ServingError if it does not start."""
        self._leases.renew(holder)
        server = await self._running()
        self._leases.renew(holder)
        return server.at

    async def renew(self, holder: str) -> None:
        """Keep the lease. After this actor's own process was restarted, that is what starts the server again."""
        self._leases.renew(holder)
        await self._running()

    async def _running(self) -> CacheServer:
        async with self._starting:
            if self._server is None:
                self._server = await asyncio.to_thread(self._start)
                self._answered_at = time.monotonic()
            if not self._tasks:  # not in __init__: that does not run on the loop that later serves the actor
                self._tasks = [asyncio.create_task(self._watch_server()), asyncio.create_task(self._publish())]
        return self._server

    async def release(self, holder: str) -> None:
        self._leases.release(holder)

    async def pulse(self) -> Pulse:
        return Pulse(self._key, up=self._server is not None and not self._down)

    async def status(self) -> dict[str, Any]:
        """What a person wants to know: where it is, whether it answers, how full L1 is, what L2 says of itself."""
        server = self._server
        report: dict[str, Any] = {
            "key": self._key,
            "node_id": ray.get_runtime_context().get_node_id(),
            "pid": server.pid if server else None,
            "restarts": self._restarts,
            "replicas": self._leases.holders(),
            "chunk_tokens": self._spec.chunk_tokens,
            "healthy": False,
        }
        if server is not None:
            report |= await self._server_status(server)
        return report

    async def clear(self) -> bool:
        """Forget everything in L1 (L2 keeps what it has). True if the server did it."""
        if self._server is None:
            return False
        try:
            answer = await self._http.post(f"{self._server.at.http_url}/cache/clear", json={}, timeout=10)
        except httpx.HTTPError:
            return False
        return answer.is_success

    async def stop(self) -> None:
        """End the server for good. The actor itself is then killed by whoever asked."""
        self._stopping = True
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)
        self._memo().unlink(missing_ok=True)

    def _start(self) -> CacheServer:
        sweep_segments()
        at = self._remembered_endpoint()
        if at is None:
            at = new_endpoint(node_host=node_host())
        else:  # engines of this actor's former life may still believe in the server that ended with it
            time.sleep(QUIET_S)
        server = CacheServer(self._spec, at, _run_directory() / f"cache-{self._key}-{at.port}.log")
        server.start()
        self._memo().write_text(json.dumps(asdict(at)))
        return server

    def _memo(self) -> Path:
        return _run_directory() / f"cache-{self._key}-{ray.get_runtime_context().get_node_id()[:12]}.endpoint"

    def _remembered_endpoint(self) -> CacheEndpoint | None:
        """The ports of this actor's former life (Ray restarts it if its process dies): engines still use them. The
        segment is a new one, named after this process, or others would take it for a dead one's."""
        try:
            at = CacheEndpoint(**json.loads(self._memo().read_text()))
            return replace(at, shm_name=segment_name(at.port))
        except (OSError, ValueError, TypeError):
            return None

    async def _watch_server(self) -> None:
        while not self._stopping:
            await asyncio.sleep(_WATCH_S)
            try:
                if self._server is not None:
                    await self._look_after(self._server)
                if self._leases.over():
                    await self.stop()
                    ray.kill(ray.get_runtime_context().current_actor)
            except Exception:
                logger.exception("looking after cache server %s failed; trying again", self._key)

    async def _look_after(self, server: CacheServer) -> None:
        now = time.monotonic()
        if server.alive() and await asyncio.to_thread(server.answers):
            self._answered_at = now
        elif not server.alive() or now - self._answered_at > _HUNG_S:
            logger.warning("cache server %s (pid %s) is gone: starting it again", self._key, server.pid)
            self._down = True
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(QUIET_S)
            await asyncio.to_thread(server.start)
            self._restarts += 1
            self._down = False
            self._answered_at = time.monotonic()

    async def _publish(self) -> None:
        metrics = RayMetrics()
        while not self._stopping:
            try:
                metrics.publish(cache_metrics.samples(self._application, await self.status()))
            except Exception:
                logger.exception("the state of cache server %s could not be published; trying again", self._key)
            await asyncio.sleep(_METRICS_S)

    async def _server_status(self, server: CacheServer) -> dict[str, Any]:
        try:
            status = (await self._http.get(f"{server.at.http_url}/status", timeout=2)).json()
        except (httpx.HTTPError, ValueError) as error:
            return {"error": str(error), "endpoint": server.at.http_url}
        storage = status.get("storage_manager", {})
        used, total = (storage.get("l1_usage") or [0, 0])[:2]
        return {
            "healthy": bool(status.get("is_healthy")),
            "endpoint": server.at.http_url,
            "l1": {"used_bytes": used, "capacity_bytes": total},
            "l2": storage.get("l2_adapters", []),
            "l2_stores_pending": sum(
                controller.get("pending_keys_count", 0) + controller.get("in_flight_task_count", 0)
                for controller in storage.get("store_controllers", {}).values()
            ),
        }


def _run_directory() -> Path:
    """Logs and memos of this Ray session's caches, on each node: beside Ray's own logs, and gone with them."""
    session = ray._private.worker._global_node
    base = Path(session.get_logs_dir_path()) if session else Path(tempfile.gettempdir())
    return base / "tierserve"


def actor_name(key: str, node_id: str) -> str:
    return f"tierserve-cache-{key}-{node_id}"


class CacheLease:
    """A replica's hold on its node's server: `async with`-free, because a replica holds it until it dies.

    It is renewed on a thread of its own. While a replica starts, vLLM's imports block its event loop, on a busy machine
    for longer than a lease lasts: the server that it had just attached to was then stopped under it.

    Raises:
        ServingError: from `acquire`, if the server does not start; the message carries the end of its log.
    """

    def __init__(self, actor: Any, holder: str, endpoint: CacheEndpoint) -> None:
        self.actor, self.holder, self.endpoint = actor, holder, endpoint
        self._over = threading.Event()
        threading.Thread(target=self._renew, name="cache-lease", daemon=True).start()

    @classmethod
    async def acquire(cls, spec: CacheSpec, application: str, holder: str) -> "CacheLease":
        node_id = ray.get_runtime_context().get_node_id()
        key = spec.key(application)
        actor = NodeCache.options(  # type: ignore[attr-defined]
            name=actor_name(key, node_id),
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
        ).remote(key, spec, application)
        try:
            endpoint = await actor.attach.remote(holder)
        except ray.exceptions.RayTaskError as error:
            raise ServingError(f"replica {holder} has no L1 cache: {error.cause}") from error
        return cls(actor, holder, endpoint)

    async def release(self) -> None:
        self._over.set()
        await self.actor.release.remote(self.holder)

    def _renew(self) -> None:
        while not self._over.wait(RENEW_S):
            try:
                ray.get(self.actor.renew.remote(self.holder), timeout=LEASE_S)
            except Exception as error:
                logger.warning("the L1 cache of this node did not take the lease: %s", error)


def node_caches() -> list[Any]:
    """Handles of every node cache in the cluster that this process is connected to."""
    named = ray.util.list_named_actors(all_namespaces=True)
    ours = [a["name"] for a in named if a["namespace"] == NAMESPACE and a["name"].startswith("tierserve-cache-")]
    return [ray.get_actor(name, namespace=NAMESPACE) for name in ours]
