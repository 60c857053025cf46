"""`tierserve`: the command line. Each command is a file in app/commands; this one only names them.

Commands are imported when they are used: importing Ray takes seconds, `--help` should not.
"""

import importlib
import sys

import click

from app.errors import TierserveError
from app.local.quiet import quiet_ray

_COMMANDS = {
    "serve": "Serve a file on this machine until Ctrl-C.",
    "demo": "Time to first token: cold, from L0, L1 and L2.",
    "status": "What a running application's tiers hold.",
    "doctor": "Check this machine and the serve files.",
    "bench": "Measurements.",
    "simulate": "Routing policies on a simulated fleet.",
    "cluster": "HyperPod EKS, Curvine and KubeRay: plan, render, apply, verify, destroy.",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"app.commands.{cmd_name}").command
        assert isinstance(command, click.Command), cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Serve LLMs on Ray Serve with a KV cache in three tiers."""


def main() -> None:
    quiet_ray()
    try:
        sys.exit(group(standalone_mode=False))  # what a command exits with; of one that just returns it is None
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except TierserveError as error:
        click.echo(f"tierserve: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
