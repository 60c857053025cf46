"""The router inside a real Ray Serve, in front of tiny deployments that echo. No model, no GPU."""

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

pytestmark = pytest.mark.e2e

ROUTER = "app.serving.router:TierRequestRouter"
LONG = "You are a careful assistant who answers in one sentence. " * 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A private Ray in a directory of its own (a short one: socket paths are limited); Ray picks free ports itself."""
    directory = Path(tempfile.mkdtemp(prefix="tr", dir="/tmp"))
    root = str(Path(__file__).parents[2])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _temp_dir=str(directory),
        address="local",
        namespace="router-tests",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": root}},
    )
    serve.start(http_options={"location": "NoServer"})
    yield
    serve.shutdown()
    ray.shutdown()
    shutil.rmtree(directory, ignore_errors=True)


@serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=100, health_check_period_s=1)
class Echo:
    """Says which replica it is, and does as it is told."""

    async def __call__(self, body: Any = None) -> tuple[str, int]:
        import asyncio

        told = body.get("do") if isinstance(body, dict) else None
        if told == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if told == "fail":
            raise ValueError("told to fail")
        if told == "wait":
            Path(f"{body['until']}.begun").touch()  # noqa: ASYNC240
            while not os.path.exists(body["until"]):  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.01)
        return serve.get_replica_context().replica_id.unique_id, os.getpid()


def deploy(
    name: str, replicas: int = 2, *, router: str = ROUTER, max_ongoing: int = 100, **kwargs: Any
) -> DeploymentHandle:
    config = RequestRouterConfig(request_router_class=router, request_router_kwargs=kwargs)
    app = Echo.options(  # type: ignore[attr-defined]
        num_replicas=replicas, request_router_config=config, max_ongoing_requests=max_ongoing
    ).bind()
    return serve.run(app, name=name, route_prefix=None)


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def ask(handle: DeploymentHandle, body: Any, timeout_s: float = 30.0) -> str:
    answer: tuple[str, int] = handle.remote(body).result(timeout_s=timeout_s)
    return answer[0]


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


def core_of(app: str) -> Any:
    from app.routing.registry import find_core

    core = find_core(app, "Echo")
    assert core is not None
    return core


@pytest.fixture
def app_name(request: pytest.FixtureRequest, cluster: None) -> Iterator[str]:
    name = request.node.name.replace("[", "-").replace("]", "").replace("_", "-")
    yield name
    serve.delete(name)


def test_same_prefix_stays_together_and_load_counts_end_at_zero(app_name: str) -> None:
    handle = deploy(app_name)
    served = set()
    for turn in range(8):
        served.add(ask(handle, chat(LONG + str(turn))))
        # An answer is here a little before Serve says that it is over, and until then its replica counts as busy.
        until(lambda: core_of(app_name).status()["in_flight"] == 0)
    assert len(served) == 1
    core = core_of(app_name)
    core.check_integrity()
    assert core.status()["reason:prefix"] == 7


@pytest.mark.parametrize(("strategy", "replicas_used"), [("round_robin", 2), ("session", 1)])
def test_the_other_strategies_serve(app_name: str, strategy: str, replicas_used: int) -> None:
    handle = deploy(app_name, strategy=strategy)
    served = set()
    for _ in range(4):
        served.add(ask(handle, chat(LONG, user="someone")))
        until(lambda: core_of(app_name).status()["in_flight"] == 0)
    assert core_of(app_name).policy.name == strategy
    assert len(served) == replicas_used


def test_a_request_of_any_shape_is_answered(app_name: str) -> None:
    handle = deploy(app_name, 1)
    body: Any
    for body in (None, "text", 7, [], {}, {"messages": 3}, {"prompt": [-1]}, {"input": [["a"]]}, b"raw"):
        assert ask(handle, body), body
    assert handle.remote().result(timeout_s=30)


def test_a_policy_that_raises_costs_affinity_and_no_request(app_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = deploy(app_name)
    ask(handle, chat("first"))
    core = core_of(app_name)

    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(core.policy, "rank", broken)
    assert ask(handle, chat(LONG))
    assert core.status()["failed:RuntimeError"] == 1
    monkeypatch.setattr(core, "choose", broken)
    assert ask(handle, chat(LONG))


def test_wrong_options_do_not_hang_requests(app_name: str) -> None:
    handle = deploy(app_name, 1, strategy="no_such", options={"x": 1}, other=True)
    assert ask(handle, chat("hello"))


def test_a_replica_that_dies_between_choice_and_dispatch(app_name: str) -> None:
    """The holder is killed; the next request still chooses it, cannot reach it, and is answered elsewhere."""
    handle = deploy(app_name)
    home, pid = handle.remote(chat(LONG)).result(timeout_s=30)
    os.kill(pid, signal.SIGKILL)
    assert ask(handle, chat(LONG + "again"), timeout_s=60) != home
    core = core_of(app_name)
    until(lambda: core.status()["in_flight"] == 0 and core.status()["replicas"] == 2, 60)
    core.check_integrity()
    assert core.roster.slot(home) is None


def test_errors_and_callers_that_leave_give_back_their_load(app_name: str, tmp_path: Path) -> None:
    handle = deploy(app_name)
    gate = tmp_path / "open"
    waiting = [handle.remote(chat(LONG, do="wait", until=str(gate))) for _ in range(6)]
    core = core_of_when_there(app_name)
    until(lambda: core.status()["in_flight"] == 6)
    for response in waiting[:3]:
        response.cancel()
    with pytest.raises(Exception, match="told to fail"):
        ask(handle, chat(LONG, do="fail"))
    until(lambda: core.status()["in_flight"] == 3)
    gate.touch()
    for response in waiting[3:]:
        response.result(timeout_s=30)
    until(lambda: core.status()["in_flight"] == 0)
    core.check_integrity()


def test_full_replicas_make_requests_wait_without_spinning(app_name: str, tmp_path: Path) -> None:
    handle = deploy(app_name, 1, max_ongoing=1)
    gate = tmp_path / "open"
    first = handle.remote(chat(LONG, do="wait", until=str(gate)))
    core = core_of_when_there(app_name)
    until(Path(f"{gate}.begun").exists)  # on a busy machine the second could overtake it
    second = handle.remote(chat(LONG))
    until(lambda: decisions(core) >= 4)
    before, started = decisions(core), time.monotonic()
    until(lambda: decisions(core) >= before + 4)
    # Serve backs off 25 ms, doubled each time up to 0.5 s; a spinning router would decide thousands of times a second.
    assert time.monotonic() - started > 0.3
    gate.touch()
    assert first.result(timeout_s=30)
    assert second.result(timeout_s=30)
    until(lambda: core.status()["in_flight"] == 0)


def test_kv_aware_tokenises_off_the_loop_and_follows_events(app_name: str) -> None:
    """The replica that says it holds the prompt gets it; a tokenizer that fails degrades the ranking and no request."""
    import msgspec

    from app.routing.kv_events import Batch, BlockStored
    from app.routing.registry import set_tokenizer

    handle = deploy(app_name, strategy="kv_aware")
    ask(handle, chat("first"))
    core = core_of(app_name)
    until(lambda: core.status()["in_flight"] == 0)
    tokens = list(range(640))
    threads: list[str] = []

    def tokenizer(body: object) -> list[int]:
        threads.append(threading.current_thread().name)
        return tokens

    set_tokenizer(app_name, "Echo", tokenizer)
    stored = BlockStored(list(range(40)), None, tokens, 16, medium="GPU")
    names = sorted(core._replicas)
    for number, name in enumerate(names):
        core.engine_events(name, 0, msgspec.msgpack.encode(Batch(0.0, [stored] if number else [])))
    before = core.status()["degraded"]
    assert ask(handle, chat(LONG)) == names[1]
    assert core.status()["degraded"] == before
    assert threads
    assert all(name.startswith("tokenize") for name in threads)

    def broken(body: object) -> list[int]:
        raise ValueError("no template")

    set_tokenizer(app_name, "Echo", broken)
    assert ask(handle, chat(LONG + "more"))
    assert core.status()["degraded"] == before + 1
    set_tokenizer(app_name, "Echo", None)


@serve.deployment(ray_actor_options={"num_cpus": 0}, health_check_period_s=1)
class Front:
    """A second process that routes to Echo, as an ingress replica does."""

    def __init__(self, echo: DeploymentHandle) -> None:
        self.echo = echo

    async def __call__(self, body: Any) -> Any:
        if body != "status":
            return await self.echo.remote(body)
        from app.routing.registry import find_core

        core = find_core(serve.get_replica_context().app_name, "Echo")
        assert core is not None
        core.check_integrity()
        return os.getpid(), core.status()


def test_a_restarted_router_starts_empty_and_serves(app_name: str, tmp_path: Path) -> None:
    """In mid-traffic: what was in flight through the old process goes with it; the new one learns afresh."""
    config = RequestRouterConfig(request_router_class=ROUTER)
    echo = Echo.options(num_replicas=2, request_router_config=config)  # type: ignore[attr-defined]
    app = Front.bind(echo.bind())  # type: ignore[attr-defined]
    front = serve.run(app, name=app_name, route_prefix=None)
    gate = tmp_path / "open"
    assert front.remote(chat(LONG)).result(timeout_s=30)
    lost = [front.remote(chat(LONG, do="wait", until=str(gate))) for _ in range(3)]
    until(lambda: front.remote("status").result(timeout_s=30)[1]["in_flight"] == 3)
    pid, before = front.remote("status").result(timeout_s=30)
    assert before["tree_nodes"] > 0
    os.kill(pid, signal.SIGKILL)
    assert front.remote(chat(LONG)).result(timeout_s=60)
    new_pid, after = front.remote("status").result(timeout_s=30)
    assert new_pid != pid
    assert after["replicas"] == 2
    assert after["reason:load"] == 1, "the first request after a restart has nothing but load to go by"
    gate.touch()
    for response in lost:
        response.cancel()
    until(lambda: front.remote("status").result(timeout_s=30)[1]["in_flight"] == 0)


def decisions(core: Any) -> float:
    status: dict[str, float] = core.status()
    return sum(count for name, count in status.items() if name.startswith("reason:"))


def core_of_when_there(app: str) -> Any:
    from app.routing.registry import find_core

    until(lambda: find_core(app, "Echo") is not None)
    return core_of(app)
