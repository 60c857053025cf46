"""The real LMCache server as a child: it starts, answers, says what it is, dies, and leaves nothing behind.

Starting takes seconds, so tests share one server as far as they can: they run in the order in which they stand.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from app.errors import ServingError
from app.tiers import cache_server
from app.tiers.cache_server import CacheServer, free_ports, new_endpoint, server_command, sweep_segments
from app.tiers.cache_spec import CacheEndpoint, CacheSpec
from tests.conftest import WaitUntil


def spec(directory: Path, eviction_policy: str = "LRU") -> CacheSpec:
    adapter = {"type": "fs", "base_path": str(directory / "l2"), "shared": True}
    return CacheSpec(0.1, 64, eviction_policy, 1, "cpu", adapter)


def segment(at: CacheEndpoint) -> Path:
    return Path(f"/dev/shm/lmcache_l1_pool_{at.shm_name}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheServer]:
    directory = tmp_path_factory.mktemp("cache")
    made = CacheServer(spec(directory), new_endpoint(), directory / "logs" / "server.log")
    made.start()
    yield made
    made.stop()


class TestRunning:
    def test_it_answers_and_holds_its_pool_in_shared_memory(self, server: CacheServer) -> None:
        assert server.alive()
        assert server.answers()
        assert segment(server.at).exists()

    def test_it_is_the_child_of_this_process_and_listens_on_loopback_only(self, server: CacheServer) -> None:
        assert server.pid is not None
        process = psutil.Process(server.pid)
        assert process.ppid() == os.getpid()
        listening = {(c.laddr.ip, c.laddr.port) for c in process.net_connections() if c.status == "LISTEN"}
        assert {port for _, port in listening} >= {server.at.port, server.at.http_port, server.at.events_port}
        assert {ip for ip, _ in listening} == {"127.0.0.1"}

    def test_it_runs_as_it_was_told(self, server: CacheServer) -> None:
        status = httpx.get(f"{server.at.http_url}/status").json()
        assert status["is_healthy"] is True
        assert status["chunk_size"] == 64
        storage = status["storage_manager"]
        assert storage["l1_usage"][0] == 0
        assert [adapter["type"] for adapter in storage["l2_adapters"]] == ["FSL2Adapter"]
        assert [adapter["is_healthy"] for adapter in storage["l2_adapters"]] == [True]

    def test_our_module_is_loaded_and_reports(self, server: CacheServer) -> None:
        status = httpx.get(f"{server.at.http_url}/status").text
        assert '"tierserve_events":{"lookups":0,"dropped":0,"l1_chunks":0,"l2_chunks":0,' in status.replace(" ", "")

    def test_it_does_not_send_usage_statistics(self, server: CacheServer) -> None:
        environment = Path(f"/proc/{server.pid}/environ").read_text().split("\0")
        assert "LMCACHE_TRACK_USAGE=false" in environment

    def test_a_second_one_on_its_port_does_not_start_and_says_why(self, server: CacheServer, tmp_path: Path) -> None:
        at = replace(new_endpoint(), port=server.at.port)
        second = CacheServer(spec(tmp_path), at, tmp_path / "log")
        with pytest.raises(ServingError, match=r"the L1 cache server ended at once; the end of .*log:\n") as caught:
            second.start()
        assert "ddress already in use" in str(caught.value)
        assert not second.alive()
        assert not segment(at).exists()
        assert server.answers()

    def test_killed_it_leaves_a_segment_that_stop_removes(self, server: CacheServer, wait_until: WaitUntil) -> None:
        assert server.pid is not None
        for child in psutil.Process(server.pid).children():  # Python's resource tracker would remove the segment
            child.kill()
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.alive(), "the server is dead")
        assert segment(server.at).exists()
        assert not server.answers()
        server.stop()
        assert not segment(server.at).exists()
        assert server.pid is None

    def test_it_starts_again_on_the_same_ports_and_ends_when_asked(self, server: CacheServer) -> None:
        server.start()
        assert server.answers()
        pid = server.pid
        server.stop()
        assert not Path(f"/proc/{pid}").exists()
        assert not segment(server.at).exists()
        server.stop()  # once more does nothing


CHILD = """
import signal
from app.tiers.launcher import end_with_parent
end_with_parent()
print("ready", flush=True)
signal.pause()
"""
STARTER = f"""
import subprocess, sys
process = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_its_starter_however_that_ends(root: Path, wait_until: WaitUntil) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root
    ) as starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        starter.kill()
        starter.wait()
        wait_until(lambda: not running(child), "the child has ended")


def running(pid: int) -> bool:
    """A zombie has ended: nobody here is to wait for it."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_start_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    server = CacheServer(spec(tmp_path), new_endpoint(), tmp_path / "log")
    with pytest.raises(ServingError, match="the L1 cache server did not answer; the end of"):
        server.start(timeout_s=0.0, sleep=lambda _: None)
    assert not server.alive()


def test_a_setting_that_lmcache_refuses_is_in_the_message(tmp_path: Path) -> None:
    server = CacheServer(spec(tmp_path, eviction_policy="NONE"), new_endpoint(), tmp_path / "log")
    with pytest.raises(ServingError, match="ended at once") as caught:
        server.start()
    assert "invalid choice: 'NONE'" in str(caught.value)


@pytest.fixture
def segments() -> Iterator[list[Path]]:
    made: list[Path] = []
    yield made
    for path in made:
        path.unlink(missing_ok=True)


def test_segments_of_dead_owners_are_swept_and_no_others(segments: list[Path]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    prefix = "/dev/shm/lmcache_l1_pool_"
    dead = Path(f"{prefix}tierserve-{process.pid}-1")
    others = [
        Path(f"{prefix}{name}") for name in (f"tierserve-{os.getpid()}-1", "tierserve-x-1", f"other-{process.pid}-1")
    ]
    segments += [dead, *others]
    for path in segments:
        path.touch()
    assert dead.name in sweep_segments()
    assert not dead.exists()
    assert all(path.exists() for path in others)


def test_ports_of_one_endpoint_differ() -> None:
    for _ in range(20):
        at = new_endpoint()
        assert len({at.port, at.http_port, at.events_port}) == 3
        assert at.shm_name == f"tierserve-{os.getpid()}-{at.port}"
    assert len(set(free_ports(50))) == 50


def test_a_gpu_server_sees_the_nodes_gpus_and_needs_no_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    on_gpu = CacheSpec(1.0, 64, "LRU", 1, "cuda", None, usage_stats=True)
    environment = cache_server.server_environment(on_gpu)
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert environment["LMCACHE_TRACK_USAGE"] == "true"
    assert "--shm-name" not in server_command(on_gpu, new_endpoint())
    assert "--l2-adapter" not in server_command(on_gpu, new_endpoint())
    assert cache_server.server_environment(spec(tmp_path))["CUDA_VISIBLE_DEVICES"] == ""
