"""Ray Serve LLM as shipped: `ray.serve.llm:build_openai_app`, one ingress, power of two choices, no shared cache.

Everything that is not the engines' is left at Ray's defaults, among it that a stream's tokens are gathered for 50 ms
before they are sent on. (Weights lie on the disk, so the download step of the start is skipped, as ours does.)
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from app.bench.load import Endpoint
from app.bench.systems.engines import Engines
from app.bench.two_nodes import one_node

NAME = "ray-serve-llm"


@contextmanager
def started(engines: Engines) -> Iterator[tuple[Endpoint, ...]]:
    """Raises ServingError if it does not come up."""
    with one_node(serve_file(engines)) as cluster:
        yield (Endpoint(cluster.url, engines.model.id, name=NAME),)


def serve_file(engines: Engines, deployment: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """For `serve deploy`. `deployment` are more options of the engines' deployment."""
    from app.serving import local_weights

    model = engines.model
    config = {
        "model_loading_config": {"model_id": model.id, "model_source": str(engines.directory)},
        "engine_kwargs": engines.arguments,
        "accelerator_config": {"kind": "cpu"},
        "placement_group_config": {"bundles": [{"CPU": model.num_cpus}]},
        "runtime_env": {"env_vars": engines.environment},
        "deployment_config": {
            "num_replicas": engines.replicas,
            "ray_actor_options": {"num_cpus": 0},
            **(deployment or {}),
        },
        "callback_config": {"callback_class": local_weights.PATH},
    }
    application = {
        "name": NAME,
        "import_path": "ray.serve.llm:build_openai_app",
        "route_prefix": "/",
        "args": {"llm_configs": [config]},
    }
    return {"proxy_location": "HeadOnly", "applications": [application]}
