"""The routers that are compared are the real ones, each decides every request, and only the loop's own time counts."""

import asyncio
import inspect
import random

import pytest

from app.bench import routing_event_loop as bench
from app.bench.routing import _texts


def test_serve_calls_of_a_router_what_is_driven_here() -> None:
    """After an upgrade a failure here says that a request costs calls which are not measured."""
    from ray.serve._private import router

    source = inspect.getsource(router.AsyncioRouter._route_and_send_request_once)
    source += inspect.getsource(router.AsyncioRouter._process_finished_request)
    called = {part.split("(")[0] for part in source.split("_active_request_router.")[1:]}
    called = {name for name in called if name.isidentifier() and name.startswith("on_")}
    assert called - {"on_replica_actor_unavailable", "on_replica_actor_died"} == {
        "on_send_request",
        "on_new_queue_len_info",
        "on_request_routed",
        "on_request_completed",
    }


def test_what_is_awaited_is_not_counted_and_what_blocks_is() -> None:
    waiting = bench._WaitingTime()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(waiting)) as runner:
        before = waiting.seconds
        runner.run(asyncio.sleep(0.05))
        waited = waiting.seconds - before

        async def busy() -> None:
            for _ in range(2000):
                random.random()

        before = waiting.seconds
        runner.run(busy())
        assert waiting.seconds - before < waited
    assert waited >= 0.04


@pytest.mark.e2e
def test_rays_router_stands_still_longer_than_ours() -> None:
    with bench.private_ray():
        figures = bench.event_loop_us(_texts(120, 2000), 8, 2)
    assert set(figures) == {"router_us", "ray_router_us", "power_of_two_us"}
    assert figures["power_of_two_us"] < figures["router_us"] < figures["ray_router_us"]
