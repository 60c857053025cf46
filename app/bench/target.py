"""What a benchmark measures: an endpoint, its tokenizer, and, of an application of ours, its replicas and tiers."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from app import demo_model
from app.bench.load import Endpoint, find_endpoint, load_tokenizer
from app.bench.load.prompts import Prompts, Tokenizer
from app.bench.two_nodes import spread_over_two, two_nodes
from app.commands.serve import DEFAULT_FILE
from app.errors import ModelError, ServingError
from app.local.quiet import quiet_ray
from app.local.signals import interrupt_on_sigterm
from app.settings import home

if TYPE_CHECKING:
    from app.client import Client

_STORED_WITHIN_S = 60.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Node:
    """A node's cache and the replicas that use it."""

    name: str
    replicas: tuple[str, ...]


class Tiers:
    """The tiers of a running application, through its SDK (needs `routing.debug`, and its Ray cluster)."""

    def __init__(self, client: "Client", nodes: list[Node], chunk_tokens: int) -> None:
        self._client, self.nodes, self.chunk_tokens = client, nodes, chunk_tokens

    @property
    def replicas(self) -> list[str]:
        return [replica for node in self.nodes for replica in node.replicas]

    def pair(self) -> tuple[str, str]:
        """A writer and a reader, on different nodes where there are several.

        Raises:
            ServingError: the application has one replica.
        """
        if len(self.replicas) < 2:
            raise ServingError("two replicas are needed, better on two nodes: without --url they are started")
        if len(self.nodes) > 1:
            return self.nodes[0].replicas[0], self.nodes[1].replicas[0]
        return self.nodes[0].replicas[0], self.nodes[0].replicas[1]

    def share_a_node(self, one: str, other: str) -> bool:
        return any(one in node.replicas and other in node.replicas for node in self.nodes)

    def status(self, replica: str) -> dict[str, Any]:
        return dict(self._client.on_replica(replica).cache_status()["cache"] or {})

    def wait_until_stored(self, replica: str) -> None:
        """Stores go on behind the answer: wait until the replica's node has none pending. Raises ServingError."""
        deadline = time.monotonic() + _STORED_WITHIN_S
        while self.status(replica).get("l2_stores_pending", 0):
            if time.monotonic() > deadline:
                raise ServingError(f"L2 did not take the chunks within {_STORED_WITHIN_S:.0f} s")
            time.sleep(0.05)

    def clear(self, replica: str, *, l1: bool = True) -> None:
        """Empty a replica's L0 and, unless told not to, its node's L1."""
        self._client.on_replica(replica).clear_caches(l1=l1)

    def clear_all(self) -> None:
        for replica in self.replicas:
            self.wait_until_stored(replica)
        for replica in self.replicas:
            self.clear(replica)

    def l1_used_bytes(self, replica: str) -> int:
        return int(self.status(replica)["l1"]["used_bytes"])

    def pool_directory(self, replica: str) -> Path | None:
        """Where L2 lies on this machine; None if it is not a directory here."""
        paths = [Path(each["path"]) for each in self.status(replica).get("l2", []) if each.get("path")]
        return paths[0] if paths and paths[0].is_dir() else None


@dataclass(frozen=True)
class Target:
    """`tiers` is None for an endpoint that is not ours or whose Ray cluster is out of reach."""

    endpoint: Endpoint
    tokenizer_source: str
    tiers: Tiers | None
    about: dict[str, Any]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.tokenizer_source)

    def prompts(self, seed: int) -> Prompts:
        return Prompts(self.tokenizer, seed)

    def need_tiers(self) -> Tiers:
        """Raises ServingError for an endpoint whose tiers cannot be told and emptied."""
        if self.tiers is None:
            raise ServingError(
                f"the tiers of {self.endpoint.url} cannot be reached from here: run this beside the application, or "
                "without --url"
            )
        return self.tiers


@contextmanager
def started_target(say: Say) -> Iterator[Target]:
    """serve_configs/local.yaml on two Ray nodes of this machine, with an empty pool of its own, until the block ends.

    Raises:
        ServingError: it did not come up.
    """
    say("Starting two Ray nodes with a replica each (about two minutes) ...")
    model = demo_model.demo_model()
    with own_pool() as pool:
        document = spread_over_two(
            yaml.safe_load(DEFAULT_FILE.read_text()),
            {"l2": {"backend": "curvine", "path": str(pool), "capacity_gib": 8}},
        )
        try:
            with two_nodes(document) as cluster:
                name = document["applications"][0]["name"]
                with joined(name, cluster.address) as tiers:
                    about = {"application": document["applications"][0]["args"], "nodes": 2}
                    yield Target(find_endpoint(cluster.url), str(model), tiers, about)
        finally:
            say("Stopped.")


@contextmanager
def own_pool() -> Iterator[Path]:
    """A pool that lasts as long as the block."""
    pool = _own_pool()
    try:
        yield pool
    finally:
        shutil.rmtree(pool, ignore_errors=True)


def _own_pool() -> Path:
    """A new directory beside the user's pool. Those of runs that were killed are removed on the way."""
    place = home() / "bench"
    place.mkdir(parents=True, exist_ok=True)
    for path in place.glob("l2-*-*"):
        if not Path(f"/proc/{path.name.split('-')[1]}").exists():
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"l2-{os.getpid()}-", dir=place))


@contextmanager
def running_target(
    url: str,
    *,
    model: str | None = None,
    api_key: str = "",
    tokenizer: str | None = None,
    address: str | None = None,
    app_name: str = "tierserve",
) -> Iterator[Target]:
    """A running endpoint. Its tiers are joined if `address` names its Ray cluster or it is a run of this machine.

    Raises:
        ServingError: it does not answer. ModelError: its tokenizer is not known.
    """
    from app.local.record import living_runs

    endpoint = find_endpoint(url, api_key, model)
    source = tokenizer or _known_tokenizer(endpoint.model)
    own = next((run for run in living_runs() if run.url.rstrip("/") == endpoint.base), None)
    where = address or (own.ray_address if own else None)
    about = {"url": url, "model": endpoint.model}
    if where is None:
        yield Target(endpoint, source, None, about)
        return
    with joined(own.name.split(",")[0] if own else app_name, where, endpoint.model) as tiers:
        yield Target(endpoint, source, tiers, about)


@contextmanager
def joined(app_name: str, address: str, model: str | None = None) -> Iterator[Tiers]:
    """Join the application's Ray cluster until the block ends."""
    import ray

    from app.client import connect
    from app.tiers.node_cache import node_caches

    quiet_ray()
    client = connect(app_name, address, model=model)
    interrupt_on_sigterm()
    try:
        statuses = ray.get([cache.status.remote() for cache in node_caches()])
        nodes = [Node(str(each["node_id"]), tuple(each["replicas"])) for each in statuses if each["replicas"]]
        if not nodes:
            raise ServingError(f"application {app_name} has no L1: there are no tiers to measure")
        yield Tiers(client, nodes, int(statuses[0]["chunk_tokens"]))
    finally:
        ray.shutdown()


def _known_tokenizer(model: str) -> str:
    if model == demo_model.NAME:
        return str(demo_model.demo_model())
    if Path(model).is_dir() or "/" in model:
        return model
    raise ModelError(f"which tokenizer does {model} have? Name its directory or its Hugging Face id with --tokenizer")
