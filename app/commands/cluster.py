"""`tierserve cluster`: plan, render, apply, status, verify, bench, destroy, cost."""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from app.errors import ClusterError

if importlib.util.find_spec("boto3") is None:
    raise ClusterError("`tierserve cluster` needs boto3: install the extra `cluster`")

from cluster.config import load_config
from cluster.files import CONFIGS
from cluster.render.bundle import Renderer
from cluster.render.objects import to_yaml
from cluster.stages import run
from cluster.stages.context import Context, Options
from cluster.stages.proof import Proof

DEFAULT = CONFIGS / "g6e-fleet.yaml"

_config = click.option(
    "--config",
    "-c",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=DEFAULT,
    help="The cluster's configuration file (default: cluster/configs/g6e-fleet.yaml).",
)
_stages = click.option("--stage", "-s", "stages", multiple=True, help=f"Only this stage: {', '.join(run.NAMES)}.")
_dry_run = click.option("--dry-run", is_flag=True, help="Let the servers check everything, change nothing.")
_timeout = click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), default=3600.0, help="Seconds to wait for each stage."
)


@click.group("cluster")
def command() -> None:
    """HyperPod EKS, Curvine and KubeRay, in five stages (docs/cluster.md)."""


def _context(path: Path, **options: Any) -> Context:
    return Context(load_config(path), click.echo, Options(**options), environment=dict(os.environ))


@command.command("plan")
@_config
@_stages
def plan(path: Path, stages: tuple[str, ...]) -> None:
    """What apply would do, stage by stage. Reads AWS, changes nothing."""
    context = _context(path)
    for stage in run.chosen(stages):
        click.echo(f"{stage.name}: {stage.title}")
        for line in stage.plan(context):
            click.echo(f"  {line}")


@command.command("render")
@_config
@_stages
@click.option("--charts", is_flag=True, help="The charts' objects too (needs helm and the charts' repositories).")
def render(path: Path, stages: tuple[str, ...], charts: bool) -> None:
    """Print every object as one YAML stream. Needs no cluster and no credentials."""
    run.chosen(stages)
    context = _context(path)
    renderer = Renderer(context.config)
    for bundle in renderer.all():
        if stages and bundle.stage not in stages:
            continue
        objects = list(bundle.objects)
        if charts:
            objects += [m for chart in bundle.charts for m in context.helm.render(chart, context.config.kubernetes)]
        click.echo(to_yaml(objects), nl=False)


@command.command("apply")
@_config
@_stages
@_dry_run
@_timeout
@click.option("--force-conflicts", is_flag=True, help="Take over fields that another field manager owns.")
@click.option("--format-curvine", is_flag=True, help="Curvine's very first start formats (refused when it exists).")
def apply(path: Path, stages: tuple[str, ...], **options: Any) -> None:
    """Make it so. Can be run again at any time; continues where it stopped."""
    run.apply(_context(path, **options), run.chosen(stages))


@command.command("status")
@_config
@_stages
def status(path: Path, stages: tuple[str, ...]) -> None:
    """What is there. Exit code 1 unless every stage is applied."""
    if not run.status(_context(path), run.chosen(stages)):
        sys.exit(1)


@command.command("verify")
@_config
@_stages
def verify(path: Path, stages: tuple[str, ...]) -> None:
    """Look at the real thing: nodes, volumes, endpoints, and the same prompt on two nodes."""
    run.verify(_context(path), run.chosen(stages))


@command.command("bench")
@_config
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("cluster-bench"),
    show_default=True,
    help="Directory for both.",
)
def bench(path: Path, output: Path) -> None:
    """The sweep and the dialogue on the running fleet: JSON and a chart."""
    for file in Proof().bench(_context(path), output):
        click.echo(str(file))


@command.command("destroy")
@_config
@_stages
@_dry_run
@_timeout
@click.option("--yes", is_flag=True, help="Do not ask.")
def destroy(path: Path, stages: tuple[str, ...], yes: bool, **options: Any) -> None:
    """Undo in reverse order; confirms that volumes are gone."""
    chosen = run.chosen(stages)
    context = _context(path, **options)
    if not (yes or options["dry_run"]):
        names = ", ".join(stage.name for stage in reversed(chosen))
        click.confirm(f"Destroy {names} of {context.config.name}, with everything that is cached?", abort=True)
    run.destroy(context, chosen)


def _register(add: Callable[[click.Command], None]) -> None:
    from cluster.cost.command import command as cost

    add(cost)


_register(command.add_command)
