"""`tierserve bench ...`: each measurement is a file in app/bench with a click command of its own name."""

import importlib

import click

from app.local.quiet import quiet_vllm

_BENCHES = {
    "all": "Every measurement, and the page that shows them.",
    "generators": "Public load generators, as they are, against the endpoint.",
    "pool": "The L2 pool beside LMCache's own file adapters.",
    "routing": "What routing a request costs, beside Ray's own routers.",
    "startup": "Seconds from the command to the first answer, and where they go.",
    "ttft": "Time to first token by prompt length: computed, and from L2, L1 and L0.",
    "dialogue": "Four turns with a growing history, held with one replica and replayed with another.",
    "rag": "Questions over documents of Zipf popularity, with sharing and without.",
    "agents": "Tool-calling loops behind a long fixed scaffold, with sharing and without.",
    "concurrency": "Rising arrival rate to saturation: goodput under a TTFT target.",
    "compare": "The same load against tierserve, Ray Serve LLM and plain vLLM, started and stopped in turn.",
    "chunks": "Time to first token from L1 and L2 by chunk size.",
}

# Of commands whose name cannot be a module's.
_MODULES = {"all": "suite"}


class _Benches(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_BENCHES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _BENCHES:
            return None
        quiet_vllm()  # some import vLLM, and `--json` promises one object
        name = _MODULES.get(cmd_name, cmd_name)
        command = getattr(importlib.import_module(f"app.bench.{name}"), name)
        assert isinstance(command, click.Command), cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_BENCHES.items()))


@click.group("bench", cls=_Benches)
def command() -> None:
    """Measurements, on this machine, with the real parts."""
