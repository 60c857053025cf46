"""Our application as serve_configs/local.yaml has it, on one node: L0, L1 and L2, and routing by prefix.

Its pool is a new directory, so the first prompt finds every tier empty.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from app.bench.load import Endpoint
from app.bench.systems.engines import Engines
from app.bench.target import own_pool
from app.bench.two_nodes import one_node

NAME = "tierserve"


@contextmanager
def started(engines: Engines) -> Iterator[tuple[Endpoint, ...]]:
    """Raises ServingError if it does not come up."""
    document = copy.deepcopy(dict(engines.document))
    model = document["applications"][0]["args"]["models"][0]
    with own_pool() as pool:
        model["l2"] = {**model["l2"], "path": str(pool)}
        with one_node(document) as cluster:
            yield (Endpoint(cluster.url, engines.model.id, name=NAME),)
