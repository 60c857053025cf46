"""What the doctor says of a file whose port is held, and of one that is wrong in several ways."""

import os
from pathlib import Path

import pytest

from app.commands.doctor import examine
from app.local.record import RunRecord
from tests.local.fake_proxy import answering

OURS = {"/-/routes": {"/": "one"}, "/health": {"status": "ok"}}


def serve_file(path: Path, port: int, model: str = "id: a, num_cpus: 0.5, l1: {gib: 0.1}") -> Path:
    app = f"{{name: one, import_path: 'app.main:build', args: {{models: [{{{model}}}]}}}}"
    path.write_text(f"http_options: {{host: 127.0.0.1, port: {port}}}\napplications: [{app}]")
    return path


def test_a_port_that_is_held_by_our_own_run_is_no_failure(tmp_path: Path) -> None:
    with answering(OURS) as port:
        RunRecord(os.getpid(), "one", "127.0.0.1:1", f"http://127.0.0.1:{port}", ("a",)).write()
        found = examine(serve_file(tmp_path / "f.yaml", port), here=True)
    assert found.problems == []
    assert found.notes[0].startswith(
        f"http://127.0.0.1:{port} is held by one (`tierserve serve`, process {os.getpid()};"
    )


def test_memory_that_our_own_run_has_taken_is_no_failure_and_what_the_file_names_still_is(tmp_path: Path) -> None:
    model = "id: a, num_cpus: 0.5, l0: {gib: 100000}, l1: {gib: 0.1}, lora: {path: /nowhere/adapters}"
    with answering(OURS) as port:
        found = examine(serve_file(tmp_path / "f.yaml", port, model), here=True)
    assert len(found.problems) == 1
    assert "lora.path /nowhere/adapters is not there" in found.problems[0]


def test_a_port_that_is_held_by_anybody_else_is_one_with_the_remedy(tmp_path: Path) -> None:
    with answering({"/health": {"status": "ok"}}) as port:
        found = examine(serve_file(tmp_path / "f.yaml", port), here=True)
    assert found.problems == [
        f"port {port} on 127.0.0.1 cannot be used (Address already in use): choose another, e.g. `make serve"
        f" PORT={port + 1}`, or http_options.port in a file of yours"
    ]


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path, unused_port: int) -> None:
    model = "id: a, num_cpus: 0.5, l1: {gib: 0.1}, lora: {path: /nowhere/adapters}, engine: {max_model_length: 1}"
    found = examine(serve_file(tmp_path / "f.yaml", unused_port, model), here=True)
    assert len(found.problems) == 2
    assert "lora.path /nowhere/adapters is not there" in found.problems[0]
    assert "engine.max_model_length: vLLM has no such argument" in found.problems[1]


@pytest.mark.parametrize("here", [True, False])
def test_adapters_are_told_of_files_that_this_machine_is_asked_about(
    tmp_path: Path, here: bool, unused_port: int
) -> None:
    model = f"id: a, num_cpus: 0.5, l1: {{gib: 0.1}}, lora: {{path: {tmp_path}}}"
    found = examine(serve_file(tmp_path / "f.yaml", unused_port, model), here)
    assert found.problems == []
    assert any("0 adapters" in note for note in found.notes) is here
