"""The command line as a person meets it: in a process of its own."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli import _COMMANDS


def run(root: Path, *arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "app.cli"]
    return subprocess.run([sys.executable, *start, *arguments], cwd=root, capture_output=True, text=True, timeout=180)


HEAVY = """
import sys
sys.argv = ["tierserve", *sys.argv[1:]]
from app.cli import main
try:
    main()
finally:
    heavy = [name for name in ("ray", "vllm", "lmcache", "torch", "transformers") if name in sys.modules]
    print("imported:", *heavy, file=sys.stderr)
"""


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command_and_imports_nothing_heavy(root: Path, flag: str) -> None:
    done = run(root, flag, code=HEAVY)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "imported:\n"
    for name, what in _COMMANDS.items():
        assert f" {name} {what}" in " ".join(done.stdout.split()), "the list wraps long lines"


@pytest.mark.parametrize("name", _COMMANDS)
def test_each_commands_own_help_is_light_too(root: Path, name: str) -> None:
    done = run(root, name, "--help", code=HEAVY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: tierserve {name}")
    assert done.stderr == "imported:\n"


def test_without_a_command_it_says_what_there_is(root: Path) -> None:
    done = run(root)
    assert done.returncode == 2
    assert "Commands:" in done.stdout + done.stderr


def test_an_unknown_command(root: Path) -> None:
    done = run(root, "srve")
    assert done.returncode == 2
    assert "No such command 'srve'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_users_mistake_is_one_line_and_exit_1(root: Path) -> None:
    done = run(root, "serve", "nowhere.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "tierserve: nowhere.yaml: cannot be read (No such file or directory)\n"


def test_a_taken_port_is_said_before_anything_is_started(root: Path, unused_port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", unused_port))
        other.listen()
        done = run(root, "serve", "--port", str(unused_port), code=HEAVY)
    assert done.returncode == 1
    first, imported = done.stderr.splitlines()
    assert first.startswith(f"tierserve: port {unused_port} on 127.0.0.1 cannot be used (Address already in use)")
    assert imported == "imported:", "nothing heavy is imported for that"


def test_a_wrong_setting_is_said_before_anything_is_started(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("applications: [{name: one, import_path: 'app.main:build', args: {models: [{id: a, replica: 1}]}}]")
    done = run(root, "serve", str(path))
    assert done.returncode == 1
    assert done.stderr == (
        f"tierserve: {path}, line 1, application one: models[0].replica: unknown key; did you mean replicas?\n"
    )


def test_the_doctor_finds_a_wrong_engine_argument(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    models = "[{id: a, l1: {gib: 0.1}, engine: {max_model_length: 1}}]"
    path.write_text(f"applications: [{{name: one, import_path: 'app.main:build', args: {{models: {models}}}}}]")
    done = run(root, "doctor", "--files-only", str(path), str(root / "serve_configs" / "local.yaml"))
    assert done.returncode == 1
    assert "model a, engine.max_model_length: vLLM has no such argument; did you mean max_model_len?" in done.stdout
    assert f"ok      {root / 'serve_configs' / 'local.yaml'}" in done.stdout
    assert f"FAILED  {path}" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_doctor_says_of_each_file_first_whether_it_is_right(root: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("applications: [{name: one, import_path: 'app.main:build', arg: {}, args: {models: [{id: a}]}}]")
    fleet = root / "serve_configs" / "g6e-fleet.yaml"
    done = run(root, "doctor", str(fleet), str(wrong), str(fleet))
    assert done.returncode == 1
    ok = [f"ok      {fleet}", "        not checked against this machine: it is for GPUs"]
    failed = [f"FAILED  {wrong}", f"        {wrong}, line 1: applications[0].arg: unknown key; did you mean args?"]
    lines = done.stdout.splitlines()
    assert lines[:4] == [*ok, *failed]
    assert "\n".join(ok) in "\n".join(lines[4:])


def test_the_doctor_tells_what_killed_processes_have_left_in_shared_memory(root: Path) -> None:
    left = Path(f"/dev/shm/psm_tierserve-test-cli-{os.getpid()}")
    left.touch()
    os.utime(left, (0, 0))
    try:
        done = run(root, "doctor", "--files-only")
    finally:
        left.unlink()
    assert re.search(
        r"^/dev/shm has \d+ files? of killed processes \([\d.]+ MiB\) that no process uses: `tierserve doctor --sweep`",
        done.stdout,
        re.M,
    )


def test_more_than_the_machine_has_is_refused_before_anything_is_started(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    models = "[{id: a, num_cpus: 100000}]"
    path.write_text(f"applications: [{{name: one, import_path: 'app.main:build', args: {{models: {models}}}}}]")
    done = run(root, "serve", str(path), code=HEAVY)
    assert done.returncode == 1
    first, imported = done.stderr.splitlines()
    assert first.startswith("tierserve: this file reserves 100000 CPUs (a 1 x 100000, ")
    assert imported == "imported:"


def test_a_note_of_a_dead_run_does_not_mislead_status(root: Path, tmp_path: Path) -> None:
    """The environment of this test has its own home: no run is there."""
    assert os.environ["TIERSERVE_HOME"].startswith(str(tmp_path))
    notes = tmp_path / "home" / "run"
    notes.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    note = notes / f"{process.pid}.json"
    note.write_text(f'{{"pid": {process.pid}, "name": "x", "ray_address": "127.0.0.1:1", "url": "", "models": []}}')
    code = "from app.local.record import living_runs; print(living_runs())"
    assert run(root, code=code).stdout == "[]\n"
    assert not note.exists()
