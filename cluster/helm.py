"""helm's own binary renders charts; what it prints is applied like everything else (no releases, no hooks)."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import yaml

from app.errors import ClusterError
from cluster.render.charts import Chart
from cluster.render.objects import CLUSTER_KINDS, Manifest


@dataclass(frozen=True)
class Output:
    code: int
    stdout: str
    stderr: str


# (command, standard input) -> what it printed. Raises FileNotFoundError when there is no such program.
Run = Callable[[Sequence[str], str], Output]


def run_process(command: Sequence[str], stdin: str) -> Output:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300, check=False)
    return Output(done.returncode, done.stdout, done.stderr)


class Helm:
    def __init__(self, run: Run = run_process) -> None:
        self._run = run

    def render(self, chart: Chart, kubernetes: str) -> list[Manifest]:
        """The chart's objects, its CRDs too, each with its namespace. Needs the chart's repository, no cluster.

        Raises:
            ClusterError: helm is not installed, or the chart cannot be fetched or rendered.
        """
        command = ["helm", "template", chart.name, chart.name, "--repo", chart.repository, "--version", chart.version]
        command += ["--namespace", chart.namespace, "--kube-version", kubernetes]
        command += ["--include-crds", "--no-hooks", "--values", "-"]
        try:
            output = self._run(command, yaml.safe_dump(dict(chart.values)))
        except FileNotFoundError:
            raise ClusterError(
                f"chart {chart.name} needs helm (3.8 or later), which is not on PATH: install it from https://helm.sh"
            ) from None
        except subprocess.TimeoutExpired:
            raise ClusterError(f"helm did not finish: is {chart.repository} reachable from here?") from None
        if output.code != 0:
            raise ClusterError(f"helm cannot render {chart.name} {chart.version}: {output.stderr.strip()[-600:]}")
        return [_placed(m, chart) for m in yaml.safe_load_all(output.stdout) if m]


def _placed(manifest: Manifest, chart: Chart) -> Manifest:
    """Many charts leave the release's namespace to helm."""
    if manifest["kind"] in CLUSTER_KINDS or manifest["metadata"].get("namespace"):
        return manifest
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": chart.namespace}}
