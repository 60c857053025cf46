"""`tierserve serve` as a child process whose lines are timed: what benchmarks of the whole application stand on."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from app.commands.serve import DEFAULT_FILE
from app.errors import ServingError
from app.tiers.cache_server import free_ports

_STOP_WITHIN_S = 120


@dataclass
class ServeProcess:
    """A running application and when each line of its output came, in seconds from its start."""

    url: str
    app_name: str
    lines: list[tuple[float, str]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def elapsed(self) -> float:
        return time.perf_counter() - self.started


@contextmanager
def serving(changes: Mapping[str, Any]) -> Iterator[ServeProcess]:
    """serve_configs/local.yaml with `changes` to its one model, served until the block ends.

    Raises:
        ServingError: it did not become ready; the message is the end of its output.
    """
    document = yaml.safe_load(DEFAULT_FILE.read_text())
    application = document["applications"][0]
    application["args"]["models"][0].update(changes)
    port = free_ports(1)[0]
    with tempfile.TemporaryDirectory(prefix="tierserve-bench-") as directory:
        file = Path(directory) / "serve.yaml"
        file.write_text(yaml.safe_dump(document))
        run = ServeProcess(f"http://127.0.0.1:{port}", application["name"])
        process = subprocess.Popen(
            [sys.executable, "-m", "app.cli", "serve", str(file), "--port", str(port)],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            _wait_until_ready(process, run)
            yield run
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=_STOP_WITHIN_S)


def _wait_until_ready(process: "subprocess.Popen[str]", run: ServeProcess) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        run.lines.append((run.elapsed(), line.rstrip()))
        if line.startswith("Ready: "):
            return
    raise ServingError("the application did not start:\n" + "\n".join(text for _, text in run.lines[-15:]))
