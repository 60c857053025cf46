"""The note a local run leaves while it lives, so that other commands on this machine find it: one JSON file per run."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from app.settings import home


@dataclass(frozen=True)
class RunRecord:
    pid: int
    name: str
    ray_address: str
    url: str
    models: tuple[str, ...]

    def write(self) -> Path:
        path = _directory() / f"{self.pid}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)))
        return path


def _directory() -> Path:
    return home() / "run"


def living_runs() -> list[RunRecord]:
    """Runs whose process is there, newest first. Notes of dead ones are removed on the way."""
    living = []
    for noted_at, path, record in sorted(_records(), key=lambda item: item[0], reverse=True):
        if _alive(record.pid, noted_at):
            living.append(record)
        else:
            path.unlink(missing_ok=True)
    return living


def _records() -> Iterator[tuple[float, Path, RunRecord]]:
    """(when it was written, file, record); what cannot be read (another command may be removing it) is passed over."""
    for path in _directory().glob("*.json"):
        try:
            fields = json.loads(path.read_text())
            record = RunRecord(**{**fields, "pid": int(fields["pid"]), "models": tuple(fields["models"])})
            yield path.stat().st_mtime, path, record
        except (OSError, ValueError, TypeError, KeyError):
            continue


def _alive(pid: int, noted_at: float) -> bool:
    """Whether the process that wrote the note is there, and not a later one with the same pid."""
    try:
        return psutil.Process(pid).create_time() <= noted_at
    except psutil.NoSuchProcess:
        return False
