"""It passes on everything that Serve calls of a router, and a new phase has a new router, in a real Serve."""

import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from ray import serve
from ray.serve.config import RequestRouterConfig

from app.bench.routing_live import STRATEGIES, control, write_control
from app.bench.switching_router import SwitchingRouter
from app.routing.registry import find_core
from tests.serving.test_router import Echo, ask, cluster

__all__ = ["cluster"]  # a fixture

OWN = {"initialize_state"}


def test_everything_that_serve_calls_is_passed_on() -> None:
    from ray.serve._private import router

    called = set(re.findall(r"request_router\.([a-z_]+)\(", inspect.getsource(router))) - OWN
    called -= {"_choose_replicas_with_backoff"}  # named in a comment
    assert "_choose_replica_for_request" in called
    missing = {name for name in called if name not in vars(SwitchingRouter)}
    assert not missing, f"Serve calls more of a router than before: {missing}"


@pytest.fixture
def phases(tmp_path: Path) -> Path:
    return tmp_path / "phase.json"


@pytest.mark.e2e
@pytest.mark.usefixtures("cluster")
def test_each_strategy_takes_its_turn(phases: Path) -> None:
    name = f"switching-{uuid4().hex[:6]}"
    write_control(phases, control("prefix_aware", "m", 64, 0))
    config = RequestRouterConfig(
        request_router_class="app.bench.switching_router:SwitchingRouter",
        request_router_kwargs={"control": str(phases)},
    )
    app = Echo.options(num_replicas=2, request_router_config=config).bind()  # type: ignore[attr-defined]
    handle = serve.run(app, name=name, route_prefix=None)
    cores = []
    for number, strategy in enumerate(STRATEGIES):
        write_control(phases, control(strategy, "m", 64, number))
        # An object, as Ray Serve LLM's ingress sends it: Ray's router reads nothing else.
        bodies = [SimpleNamespace(prompt=f"hello {turn}") for turn in range(6)]
        assert len({ask(handle, body) for body in bodies}) in (1, 2)
        core = find_core(name, "Echo")
        if strategy.startswith("ray_"):
            assert core is None
        else:
            assert core is not None
            assert core.policy.name == strategy
            cores.append(core)
    assert len({id(core) for core in cores}) == 4
    serve.delete(name)
