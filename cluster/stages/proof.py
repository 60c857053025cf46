"""Stage 5: the proof. A Job sends the same prompt to replicas on two nodes and reports what each tier gave."""

import json
from pathlib import Path
from typing import Any

from app.errors import ClusterError
from cluster.probe.report import check_report, summary
from cluster.render.objects import Ref, ref_of
from cluster.stages.context import Context
from cluster.stages.jobs import finished, run_job
from cluster.stages.stage import Stage, StageStatus

_TIMEOUT_S = 3600


class Proof(Stage):
    name = "verify"
    title = "Proof of the shared cache"

    def check(self, context: Context) -> None:
        ref = Ref("ray.io/v1", "RayService", context.config.namespace, context.config.name)
        if context.api.get(ref) is None:
            raise ClusterError(f"{ref} is not there: apply the stage serving first")

    def plan(self, context: Context) -> list[str]:
        arguments = context.renderer.probe_arguments()
        return [f"Job {context.config.name}-probe: python -m cluster.probe {' '.join(arguments)}"]

    def apply(self, context: Context) -> None:
        if context.options.dry_run:
            context.say("  would run " + self.plan(context)[0])
            return
        for line in self.verify(context):
            context.say(f"  {line}")

    def status(self, context: Context) -> StageStatus:
        ref = ref_of(context.renderer.check("probe", probe_arguments=[]))
        if context.api.get(ref) is None:
            return StageStatus("absent", ("never run",))
        done = finished(context, ref)
        return StageStatus("applied" if done else "partial", ("last run succeeded" if done else "last run did not",))

    def verify(self, context: Context) -> list[str]:
        self.check(context)
        return summary(check_report(self.run(context)))

    def destroy(self, context: Context) -> None:
        for name in ("probe", "shared-write", "shared-read"):
            ref = ref_of(context.renderer.check(name, probe_arguments=[], writer_node=""))
            if context.options.dry_run:
                context.say(f"  would delete {ref}")
            elif context.api.delete(ref, dependents_first=True):
                context.say(f"  deleted {ref}")

    def run(self, context: Context, *, bench: bool = False) -> dict[str, Any]:
        """The probe's report. Raises ClusterError when the Job failed or printed none."""
        manifest = context.renderer.check("probe", probe_arguments=context.renderer.probe_arguments(bench=bench))
        output = run_job(context, manifest, _TIMEOUT_S).output
        lines = [line for line in output.splitlines() if line.startswith("{")]
        if not lines:
            raise ClusterError(f"the probe printed no report: {output[-800:].strip()}")
        report = json.loads(lines[-1])
        assert isinstance(report, dict), report
        return report

    def bench(self, context: Context, directory: Path) -> list[Path]:
        """Sweep and dialogue as well; writes JSON and a chart into `directory`."""
        from cluster.probe.chart import draw

        self.check(context)
        report = self.run(context, bench=True)
        directory.mkdir(parents=True, exist_ok=True)
        results = directory / "cluster-bench.json"
        results.write_text(json.dumps(report, indent=2))
        check_report(report)
        return [results, draw(report, directory / "cluster-bench.png")]
