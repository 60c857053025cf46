"""`tierserve doctor`: is this machine fit, and are the serve files right? Nothing is started."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from app.commands.serve import DEFAULT_FILE
from app.errors import MachineError, TierserveError
from app.local.leftovers import remove_segments
from app.local.machine import Machine, needed_bytes
from app.local.orphans import orphans, told
from app.local.paths import notes_on_adapters, notes_on_space
from app.local.port import check_port
from app.local.preflight import check_file, check_here
from app.local.running import Running, running_at
from app.local.serve_file import ServeFile, load_serve_file
from app.settings import GiB


@click.command("doctor")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--here/--files-only", default=True, help="Also check this machine against each file that runs on CPU.")
@click.option("--sweep", is_flag=True, help="First remove what killed processes have left in /dev/shm.")
def command(files: tuple[Path, ...], here: bool, sweep: bool) -> None:
    """Check FILES (default: serve_configs/local.yaml): keys, values, every engine argument, and this machine."""
    if sweep:
        click.echo(_sweep())
    findings = [_told(path, here) for path in files or (DEFAULT_FILE,)]
    machine = Machine.read()
    click.echo(
        f"memory {machine.available_bytes / GiB:.1f} GiB free, /dev/shm {machine.shm_free_bytes / GiB:.1f} GiB free"
    )
    if left := orphans():
        click.echo(f"/dev/shm has {told(left)} that no process uses: `tierserve doctor --sweep` removes them")
    raise click.exceptions.Exit(0 if all(findings) else 1)


def _sweep() -> str:
    found = orphans()
    what = told(found)
    remove_segments(found)
    return f"removed from /dev/shm: {what}"


def _told(path: Path, here: bool) -> bool:
    """Whether the file is right."""
    found = examine(path, here)
    click.echo("\n        ".join([f"{'FAILED' if found.problems else 'ok':7} {path}", *found.problems, *found.notes]))
    return not found.problems


@dataclass
class Diagnosis:
    problems: list[str] = field(default_factory=list)
    """Lines, in the order in which `tierserve serve` would find them; it stops at the first check that fails."""
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def gathering(self) -> Iterator[None]:
        try:
            yield
        except TierserveError as error:
            self.problems += str(error).splitlines()


def examine(path: Path, here: bool) -> Diagnosis:
    """What is wrong with a file, and what is worth knowing of it."""
    found = Diagnosis()
    with found.gathering():
        file = load_serve_file(path)
        if here and _on_cpu(file):
            _examine_here(file, found)
        elif here:
            found.notes.append("not checked against this machine: it is for GPUs")
        with found.gathering():
            check_file(file)
    return found


def _examine_here(file: ServeFile, found: Diagnosis) -> None:
    running = None
    with found.gathering():
        running = _holder_of_port(file)
    with found.gathering():
        check_here(file, room=running is None)
    if running is not None:
        found.notes.append(f"{running.told()}. Free memory is not looked at meanwhile")
    for entry in file.applications:
        found.notes.append(f"{entry.name} needs about {needed_bytes(entry.settings) / GiB:.1f} GiB of memory")
    for entry in file.applications:
        found.notes += [*notes_on_space(entry.settings), *notes_on_adapters(entry.settings)]


def _holder_of_port(file: ServeFile) -> Running | None:
    """What of ours holds the file's port. Raises MachineError if anything else does."""
    try:
        check_port(file.host, file.port)
    except MachineError:
        if running := running_at(file.host, file.port):
            return running
        raise
    return None


def _on_cpu(file: ServeFile) -> bool:
    return all(model.on_cpu for entry in file.applications for model in entry.settings.models)
