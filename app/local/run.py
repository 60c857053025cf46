"""A private Ray on this machine with the applications of a serve file on it, from start to a clean end."""

import io
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import TracebackType

import psutil

from app import demo_model
from app.errors import ServingError
from app.local.leftovers import descendants, end, remove_segments, segments_of, with_temporary
from app.local.machine import OBJECT_STORE_BYTES
from app.local.port import TEMP_PREFIX, check_port, open_connections
from app.local.preflight import check_file, check_here
from app.local.progress import deployment_progress
from app.local.quiet import no_native_errors, quiet_ray, quiet_raylet, quiet_vllm
from app.local.record import RunRecord
from app.local.serve_file import ServeFile
from app.local.serve_schema import unread_here
from app.local.serve_state import StartCrashes
from app.local.signals import cut_short_by_signals, undisturbed
from app.settings import Settings, home

Say = Callable[[str], None]


class LocalRun:
    """`with LocalRun(file, say) as run:` serves `file` until the block ends; then nothing of it is left.

    Raises:
        MachineError, SettingsError, ModelError: before anything is started.
        ServingError: an application did not become ready.
    """

    def __init__(self, file: ServeFile, say: Say) -> None:
        self.file, self._say = file, say
        self._temp: Path | None = None
        self._note: Path | None = None

    @property
    def url(self) -> str:
        return f"http://{self.file.host}:{self.file.port}"

    def __enter__(self) -> "LocalRun":
        check_port(self.file.host, self.file.port, self._say)
        sweep_stale()  # first: what a killed run has left in /dev/shm is memory that the check would miss
        check_here(self.file)  # what `tierserve doctor` says of the file, in its order
        self._say("Checking the file (importing vLLM) ...")
        check_file(self.file)
        for path in unread_here(self.file):
            self._say(f"  {path} is not read here: it is for `serve deploy`")
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        with undisturbed():
            began = time.monotonic()
            hurried = self._stop()
            how = ", at once: what was under way is lost" if hurried else ""
            self._say(f"Stopped after {time.monotonic() - began:.0f} s{how}. {_STAYS}")

    def _start(self) -> None:
        if any(model.source == "demo" for entry in self.file.applications for model in entry.settings.models):
            if not demo_model.is_prepared():
                self._say("Preparing the demo model (once, about half a minute) ...")
            demo_model.demo_model()
        self._say("Starting Ray ...")
        self._start_ray()
        self._say("Building the application ...")
        self._deploy()

    def _start_ray(self) -> None:
        if not any(entry.settings.usage_stats for entry in self.file.applications):
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        from ray._private import auto_init_hook

        from app.tiers import node_host

        self._temp = Path(tempfile.mkdtemp(prefix=f"{TEMP_PREFIX}{os.getpid()}-"))
        # Serve would start each replica three times; what ends an engine at its start ends it each time.
        os.environ.setdefault("RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT", "1")
        # What engines put into /tmp (vLLM's sockets, a file per engine) goes with this run.
        os.environ["TMPDIR"] = str(self._temp)
        os.environ[node_host.VARIABLE] = "127.0.0.1"
        # The thread that deploys calls Ray while it is being shut down: without this it would start another one.
        auto_init_hook.enable_auto_connect = False  # private name of ray 2.60.0
        quiet_raylet()
        with _own_sigterm():
            context = ray.init(
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=str(self._temp),
            )
        models = tuple(model.id for entry in self.file.applications for model in entry.settings.models)
        names = ",".join(entry.name for entry in self.file.applications)
        self._note = RunRecord(os.getpid(), names, context.address_info["gcs_address"], self.url, models).write()

    def _deploy(self) -> None:
        quiet_vllm()
        from ray import serve

        from app.main import application

        quiet_ray()
        serve.start(proxy_location="HeadOnly", http_options={"host": self.file.host, "port": self.file.port})
        applications = [
            (entry.name, entry.route_prefix, application(_hurried(entry.settings))) for entry in self.file.applications
        ]
        self._say("Starting the engines ...")
        running = _Deploying(lambda: [serve.run(app, name=n, route_prefix=r) for n, r, app in applications])
        crashes = StartCrashes(self._logs())
        deployment_progress(running.is_done, self._say, self._logs(), crashes.new)
        if running.error is not None:
            why = crashes.failed() or str(running.error)
            raise ServingError(
                f"the application did not become ready: {why}\n  The logs of this start: {self._keep_logs()}"
            ) from running.error

    def _keep_logs(self) -> Path:
        kept = home() / "failed-start"
        shutil.rmtree(kept, ignore_errors=True)
        with suppress(shutil.Error, OSError):  # some of it may be vanishing
            shutil.copytree(self._logs(), kept)
        return kept

    def _logs(self) -> Path:
        assert self._temp is not None
        return self._temp / "session_latest" / "logs"

    def _stop(self) -> bool:
        """Take down everything that was started, and say what is waited for. Whether Ctrl-C made it do so at once."""
        processes = descendants()
        segments = segments_of(processes)
        # Ray prints that calls to actors which we end on purpose have failed.
        nowhere = io.StringIO()
        with cut_short_by_signals() as haste:
            self._say(_waited_for(open_connections(self.file.port)))
            with redirect_stdout(nowhere), redirect_stderr(nowhere), suppress(Exception):
                _stop_serving([entry.name for entry in self.file.applications])
                import ray

                ray.shutdown()
            end(processes)
        if haste.came:
            self._kill(processes, segments)
        else:
            remove_segments(segments)
        if self._note is not None:
            self._note.unlink(missing_ok=True)
        if self._temp is not None:
            shutil.rmtree(self._temp, ignore_errors=True)
        return haste.came

    def _kill(self, processes: list[psutil.Process], segments: set[Path]) -> None:
        """`processes`, whatever came after them, and what all of them would leave in /dev/shm."""
        late = with_temporary(self._temp) if self._temp is not None else []
        everyone = {*processes, *descendants(), *late}
        segments |= segments_of(list(everyone))
        with no_native_errors():  # Ray tells of each call whose actor we kill
            end(list(everyone), grace_s=0.0, term_s=0.0)
            remove_segments(segments)


_GRACE_S = 3.0
_STAYS = "The L2 pool and the prepared model stay for the next start."


def _waited_for(connections: int) -> str:
    at_once = "Ctrl-C again stops at once"
    if not connections:
        return f"Stopping replicas, cache servers and Ray ... ({at_once})"
    open_ = "1 connection is open" if connections == 1 else f"{connections} connections are open"
    return f"Stopping: {open_}, and answers under way are given time to end. {at_once}; they are lost then ..."


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the program's handler of SIGTERM. Ray sets its own when it starts, which prints a trace of its native code,
    and exits anew at each further signal, in the middle of taking everything down."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if callable(before):
        signal.signal(signal.SIGTERM, before)


class _Deploying(threading.Thread):
    """Deploys in the background, as a daemon: a Ctrl-C meanwhile must not wait for what may never end."""

    def __init__(self, deploy: Callable[[], object]) -> None:
        super().__init__(name="tierserve-deploy", daemon=True)
        self._deploy = deploy
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._deploy()
        except BaseException as error:
            self.error = error

    def is_done(self) -> bool:
        return not self.is_alive()


def _hurried(settings: Settings) -> Settings:
    """Whoever presses Ctrl-C waits for the answers under way."""
    wait_s = min(settings.graceful_shutdown_timeout_s, _GRACE_S)
    return settings.model_copy(update={"graceful_shutdown_timeout_s": wait_s})


def _stop_serving(names: Sequence[str]) -> None:
    import ray
    from ray import serve

    from app.tiers.node_cache import node_caches

    if not ray.is_initialized():
        return
    for name in names:  # before the proxies, which end the connections of what is not told by then
        with suppress(Exception):
            serve.delete(name)
    serve.shutdown()
    for cache in node_caches():
        with suppress(ray.exceptions.RayError):
            ray.get(cache.stop.remote(), timeout=20)
        ray.kill(cache)


def sweep_stale() -> None:
    """Remove temporary directories and L1 segments of runs that were killed."""
    from app.tiers.cache_server import sweep_segments

    sweep_segments()
    for path in Path(tempfile.gettempdir()).glob(f"{TEMP_PREFIX}*-*"):
        owner = path.name.removeprefix(TEMP_PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(path, ignore_errors=True)
