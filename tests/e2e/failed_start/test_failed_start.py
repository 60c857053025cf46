"""A replica that cannot start: why is said, the start is given up, and nothing of it is left but its logs."""

import os
import subprocess
from pathlib import Path

from app.tiers.cache_server import free_ports
from tests.e2e.conftest import READY_WITHIN_S, ROOT, TIERSERVE, leftovers, serve_file


def test_an_engine_without_room_for_one_request(home: Path, tmp_path: Path) -> None:
    """Only the engine's own process knows that, after it has loaded the model."""
    file = serve_file(tmp_path, l0={"gib": 0.01}, replicas=1)
    command = [*TIERSERVE, "serve", str(file), "--port", str(free_ports(1)[0])]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "TIERSERVE_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as serve:
        said, failed = serve.communicate(timeout=READY_WITHIN_S)
    assert serve.returncode == 1, said + failed
    # Before it, on a machine where nobody has prepared the model yet, that is told.
    assert "\ntierserve: the application did not become ready: smollm2-135m-instruct: " in f"\n{failed}"
    assert "KV cache" in failed
    assert "-> raise `l0.gib` or lower `engine.max_model_len`" in failed
    assert "Traceback" not in said + failed
    assert list((home / "failed-start").glob("worker-*")), "for whoever wants to know more"
    assert not leftovers({serve.pid})
