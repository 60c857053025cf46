"""Stage 3: the shared L2. Curvine with its claim (or a host directory on kind), proved by writing and reading.

Curvine's format flags wipe what is stored. They are false in every rendering but one: `--format-curvine`, which is only
accepted while nothing of Curvine exists, and which applies false again before the stage ends. 0.4.1 does not need it.
"""

from app.errors import ClusterError
from cluster.files import data
from cluster.kube.readiness import readiness
from cluster.render.objects import Ref
from cluster.stages.context import Context
from cluster.stages.jobs import run_job
from cluster.stages.objects import ObjectStage
from cluster.stages.removal import confirm_gone, remove, remove_claims, volumes_of

_FIRST = ("PersistentVolumeClaim", "Job")


class Curvine(ObjectStage):
    name = "curvine"
    title = "Shared L2"

    def check(self, context: Context) -> None:
        if context.options.format_curvine and _exists(context):
            raise ClusterError(
                "--format-curvine would wipe data: Curvine or volumes of it are there already. Leave the option out; "
                "to start anew, destroy the stage curvine first"
            )

    def apply(self, context: Context) -> None:
        if context.options.format_curvine and not context.options.dry_run:
            context.say("  first start with formatting")
            self.apply_objects(context, format=True)
        self.apply_objects(context)

    def verify(self, context: Context) -> list[str]:
        """Writes random bytes on one node and reads them on another, both as the user that the Ray pods run as."""
        lines = super().verify(context)
        renderer = context.renderer
        written = run_job(context, renderer.check("shared-write"))
        read = run_job(context, renderer.check("shared-read", writer_node=written.node))
        if written.output.split() != read.output.split():
            raise ClusterError(
                f"node {read.node} reads other bytes than node {written.node} wrote ({read.output.strip()} instead of "
                f"{written.output.strip()}): the volume is not shared; look at the FUSE pods in namespace curvine"
            )
        if written.node == read.node:
            raise ClusterError(f"both checks ran on node {read.node}: a second node is needed to prove sharing")
        return [*lines, f"16 MiB written on {written.node}, read and equal on {read.node}"]

    def destroy(self, context: Context) -> None:
        inventory, refs = self.inventory(context), self.inventory(context).read()
        claims = [ref.name for ref in refs if ref.kind == "PersistentVolumeClaim"]
        shared, _ = volumes_of(context, context.config.namespace, claims)
        # The claim's volume is removed by the CSI driver: both must outlive it.
        remove(context, [ref for ref in refs if ref.kind in _FIRST])
        if not context.options.dry_run:
            confirm_gone(context, shared, [])
        remove(context, [ref for ref in refs if ref.kind not in (*_FIRST, "Namespace", "PersistentVolume")])
        self._destroy_masters(context)
        remove(context, [ref for ref in refs if ref.kind in ("Namespace", "PersistentVolume")])
        if not context.options.dry_run:
            inventory.drop()
            context.say(f"  what workers wrote stays on the nodes until they are replaced: {_where(context)}")

    def _destroy_masters(self, context: Context) -> None:
        if context.config.storage.backend != "curvine":
            return
        volumes, disks = volumes_of(context, _namespace())
        remove_claims(context, _namespace())
        if not context.options.dry_run:
            confirm_gone(context, volumes, disks)


def _namespace() -> str:
    return str(data("versions")["charts"]["curvine"]["namespace"])


def _where(context: Context) -> str:
    storage = context.config.storage
    return storage.nvme_path if storage.backend == "curvine" else storage.host_path


def _exists(context: Context) -> bool:
    master = context.api.get(Ref("apps/v1", "StatefulSet", _namespace(), "curvine-master"))
    claims = context.api.list("v1", "PersistentVolumeClaim", _namespace())
    return bool(claims) or (master is not None and readiness(master).state != "failed")
