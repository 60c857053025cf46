"""`tierserve doctor`: is this machine fit, and are the serve files right? Nothing is started."""

from pathlib import Path

import click

from app.commands.serve import DEFAULT_FILE
from app.errors import TierserveError
from app.local.leftovers import remove_segments
from app.local.machine import Machine, needed_bytes
from app.local.orphans import orphans, told
from app.local.paths import notes_on_space
from app.local.port import check_port
from app.local.preflight import check_file, check_here
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
    failed = False
    for path in files or (DEFAULT_FILE,):
        try:
            notes = examine(path, here)
        except TierserveError as error:
            failed, verdict, notes = True, "FAILED", str(error).splitlines()
        else:
            verdict = "ok"
        click.echo("\n        ".join([f"{verdict:7} {path}", *notes]))
    machine = Machine.read()
    click.echo(
        f"memory {machine.available_bytes / GiB:.1f} GiB free, /dev/shm {machine.shm_free_bytes / GiB:.1f} GiB free"
    )
    if left := orphans():
        click.echo(f"/dev/shm has {told(left)} that no process uses: `tierserve doctor --sweep` removes them")
    raise click.exceptions.Exit(1 if failed else 0)


def _sweep() -> str:
    found = orphans()
    what = told(found)
    remove_segments(found)
    return f"removed from /dev/shm: {what}"


def examine(path: Path, here: bool) -> list[str]:
    """What is worth knowing of a file that is right. Raises TierserveError for one that is not."""
    file = load_serve_file(path)
    check_file(file)
    if not here:
        return []
    if not _on_cpu(file):
        return ["not checked against this machine: it is for GPUs"]
    check_here(file)
    check_port(file.host, file.port)
    needs = [
        f"{entry.name} needs about {needed_bytes(entry.settings) / GiB:.1f} GiB of memory"
        for entry in file.applications
    ]
    return needs + [note for entry in file.applications for note in notes_on_space(entry.settings)]


def _on_cpu(file: ServeFile) -> bool:
    return all(model.on_cpu for entry in file.applications for model in entry.settings.models)
