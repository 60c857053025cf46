"""Says what engines are doing while they start, by the marks that Serve leaves in their replicas' logs."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

# (mark in a replica's Serve log, what it means to a person); the last one found is where the replica is.
_MARKS = (
    ("Started initializing replica", "attaching to L1"),
    ("Using executor class", "vLLM's engine process imports and loads weights"),
    ("Started vLLM engine", "engine up"),
    ("Finished initializing replica", "ready"),
)
# It was ended, or ended itself because it could not start: no longer one of those to wait for.
_GONE = "replica exiting"
_TICK_S = 1.0


def deployment_progress(
    done: Callable[[], bool],
    say: Callable[[str], None],
    logs: Path,
    crashes: Callable[[], Iterable[str]] = tuple,
) -> None:
    """Return when `done`; meanwhile `say` each change of what the replicas do, and what `crashes` tells. Blocks."""
    started = time.monotonic()
    said = ""
    while not done():
        for crash in crashes():
            say(f"  {time.monotonic() - started:4.0f} s  {crash}")
        line = " | ".join(replica_stages(logs)) or "replicas import vLLM"
        if line != said:
            say(f"  {time.monotonic() - started:4.0f} s  {line}")
            said = line
        time.sleep(_TICK_S)


def replica_stages(logs: Path) -> list[str]:
    """The stage of each engine replica that has begun and is there, by name of its log."""
    files = sorted((logs / "serve").glob("replica_*_engine_*.log"))
    return [f"{index}: {stage}" for index, file in enumerate(files, 1) if (stage := _stage(file))]


def _stage(file: Path) -> str | None:
    try:
        text = file.read_text(errors="replace")
    except OSError:  # rotated or removed since it was listed
        return None
    if _GONE in text:
        return None
    found = [meaning for mark, meaning in _MARKS if mark in text]
    return found[-1] if found else None
