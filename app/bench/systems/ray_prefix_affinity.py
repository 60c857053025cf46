"""Ray Serve LLM with its own PrefixCacheAffinityRouter, at that router's defaults; the rest is as shipped."""

from collections.abc import Iterator
from contextlib import contextmanager

from app.bench.load import Endpoint
from app.bench.systems.engines import Engines
from app.bench.systems.ray_serve_llm import serve_file
from app.bench.two_nodes import one_node

NAME = "ray-prefix-affinity"
ROUTER = "ray.serve.llm.request_router:PrefixCacheAffinityRouter"


@contextmanager
def started(engines: Engines) -> Iterator[tuple[Endpoint, ...]]:
    """Raises ServingError if it does not come up."""
    document = serve_file(engines, {"request_router_config": {"request_router_class": ROUTER}})
    with one_node(document) as cluster:
        yield (Endpoint(cluster.url, engines.model.id, name=NAME),)
