"""A run's note is found while its process lives, and gone when it does not."""

import os
import subprocess
import sys
import time
from pathlib import Path

from app.local.record import RunRecord, living_runs


def record(pid: int, name: str = "tierserve") -> RunRecord:
    return RunRecord(pid, name, "127.0.0.1:6379", "http://127.0.0.1:8000", ("a", "b"))


def dead_pid() -> int:
    """Of a process that has ended and been waited for."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_living_run_is_found_as_it_was_written() -> None:
    record(os.getpid()).write()
    assert living_runs() == [record(os.getpid())]


def test_no_run_no_record() -> None:
    assert living_runs() == []


def test_notes_of_dead_runs_are_removed() -> None:
    dead = record(dead_pid()).write()
    alive = record(os.getpid()).write()
    assert living_runs() == [record(os.getpid())]
    assert not dead.exists()
    assert alive.exists()


def test_the_newest_run_comes_first() -> None:
    old, new = record(os.getpid()), record(os.getppid())
    now = time.time()
    os.utime(old.write(), (now + 1, now + 1))
    os.utime(new.write(), (now + 2, now + 2))
    assert living_runs() == [new, old]


def test_a_later_process_with_the_same_pid_is_not_the_run() -> None:
    os.utime(record(os.getpid()).write(), (1, 1))
    assert living_runs() == []


def test_a_run_of_another_user_is_alive() -> None:
    record(1).write()  # init: we may not signal it, unless we are root
    assert living_runs() == [record(1)]


def test_what_is_no_note_is_passed_over_and_left_alone(tmp_path: Path) -> None:
    directory = record(os.getpid()).write().parent
    others = {
        "broken.json": "{",
        "list.json": "[1]",
        "other.json": '{"pid": 1}',
        "text.json": '{"pid": "x", "name": "", "ray_address": "", "url": "", "models": []}',
        "gone.json": None,
    }
    for name, text in others.items():
        path = directory / name
        if text is None:
            path.symlink_to(tmp_path / "nowhere")
        else:
            path.write_text(text)
    assert living_runs() == [record(os.getpid())]
    assert {path.name for path in directory.iterdir()} == {*others, f"{os.getpid()}.json"}
