"""`tierserve doctor`: is this machine fit, and are the serve files right? Nothing is started."""

from pathlib import Path

import click

from app.commands.serve import DEFAULT_FILE
from app.errors import TierserveError
from app.local.machine import Machine, check_machine, check_port, needed_bytes
from app.local.paths import check_paths
from app.local.quiet import quiet_vllm
from app.local.serve_file import ServeFile, load_serve_file
from app.settings import GiB


@click.command("doctor")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--here/--files-only", default=True, help="Also check this machine against each file that runs on CPU.")
def command(files: tuple[Path, ...], here: bool) -> None:
    """Check FILES (default: serve_configs/local.yaml): keys, values, every engine argument, and this machine."""
    quiet_vllm()
    failed = False
    for path in files or (DEFAULT_FILE,):
        try:
            file = load_serve_file(path)
            check_engines(file)
            if here and all(model.on_cpu for entry in file.applications for model in entry.settings.models):
                check_here(file)
            click.echo(f"ok      {path}")
        except TierserveError as error:
            failed = True
            click.echo(f"FAILED  {path}\n        " + str(error).replace("\n", "\n        "))
    machine = Machine.read()
    click.echo(
        f"memory {machine.available_bytes / GiB:.1f} GiB free, /dev/shm {machine.shm_free_bytes / GiB:.1f} GiB free"
    )
    raise click.exceptions.Exit(1 if failed else 0)


def check_engines(file: ServeFile) -> None:
    """Raises SettingsError for an engine argument or a routing option that does not exist. Imports vLLM (seconds)."""
    from app.serving.engine_arguments import check_engine_arguments
    from app.serving.llm_config import router_arguments

    for entry in file.applications:
        for model in entry.settings.models:
            check_engine_arguments(model)
            router_arguments(model)


def check_here(file: ServeFile) -> None:
    """Raises MachineError for what is missing."""
    for entry in file.applications:
        check_machine(entry.settings, Machine.read())
        check_paths(entry.settings)
        click.echo(f"        {entry.name} needs about {needed_bytes(entry.settings) / GiB:.1f} GiB of memory")
    check_port(file.host, file.port)
