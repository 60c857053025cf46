"""A stage made of Kubernetes objects: inventory, server-side apply in order, pruning, waits, removal."""

from app.errors import ClusterError
from cluster.kube.errors import InvalidError, UnknownKindError
from cluster.kube.inventory import Inventory
from cluster.kube.readiness import is_judged, readiness
from cluster.render.objects import Manifest, Ref, in_order, labelled
from cluster.stages.context import Context
from cluster.stages.removal import remove
from cluster.stages.stage import Stage, StageStatus

_CRD_S = 120


class ObjectStage(Stage):
    """`name` is that of a bundle (cluster/render/bundle.py). Subclasses add what is not an object."""

    def plan(self, context: Context) -> list[str]:
        bundle = context.renderer.bundle(self.name)
        charts = [f"chart {chart.name} {chart.version} into {chart.namespace}" for chart in bundle.charts]
        return charts + [f"{m['kind']} {m['metadata']['name']}" for m in bundle.objects]

    def apply(self, context: Context) -> None:
        self.apply_objects(context)

    def manifests(self, context: Context, **more: object) -> list[Manifest]:
        """Own objects and those of the charts, in the order in which they must be applied."""
        bundle = context.renderer.bundle(self.name, **more)
        rendered = [
            labelled(manifest, self.name)
            for chart in bundle.charts
            for manifest in context.helm.render(chart, context.config.kubernetes)
        ]
        return in_order([*bundle.objects, *rendered])

    def apply_objects(self, context: Context, **more: object) -> None:
        manifests = self.manifests(context, **more)
        if context.options.dry_run:
            _dry_run(context, manifests)
            return
        inventory = self.inventory(context)
        # The namespace that holds the inventory is the first thing that the first stage applies.
        first = [m for m in manifests if m["kind"] == "Namespace" and m["metadata"]["name"] == inventory.ref.namespace]
        for manifest in first:
            _apply(context, manifest)
        old = inventory.read()
        new = [_ref(m) for m in manifests]
        inventory.write([*old, *new])
        for manifest in manifests:
            _apply(context, manifest)
        remove(context, [ref for ref in old if ref not in new and ref.kind not in ("Secret", "Namespace")])
        inventory.write([*[ref for ref in old if ref.kind == "Secret"], *new])
        context.waiter.ready(context.api, [ref for ref in new if is_judged(ref.kind)], context.options.timeout_s)

    def inventory(self, context: Context) -> Inventory:
        return Inventory(context.api, context.config.namespace, self.name)

    def status(self, context: Context) -> StageStatus:
        refs = self.inventory(context).read()
        if not refs:
            return StageStatus("absent", ("never applied",))
        lines = [f"{ref}: {text}" for ref in refs if (text := _not_ready(context, ref)) is not None]
        state = "partial" if lines else "applied"
        return StageStatus(state, (f"{len(refs) - len(lines)} of {len(refs)} objects ready", *lines))  # type: ignore[arg-type]

    def verify(self, context: Context) -> list[str]:
        status = self.status(context)
        if status.state != "applied":
            raise ClusterError(f"stage {self.name} is {status.state}: " + "; ".join(status.lines[:6]))
        return list(status.lines)

    def destroy(self, context: Context) -> None:
        inventory = self.inventory(context)
        remove(context, inventory.read())
        if not context.options.dry_run:
            inventory.drop()


def _ref(manifest: Manifest) -> Ref:
    meta = manifest["metadata"]
    return Ref(manifest["apiVersion"], manifest["kind"], meta.get("namespace"), meta["name"])


def _apply(context: Context, manifest: Manifest) -> None:
    try:
        change = context.api.apply(manifest, force=context.options.force_conflicts)
    except InvalidError:
        if manifest["kind"] != "Job":
            raise
        # A Job cannot be changed, only made anew; ours can be repeated.
        context.api.delete(_ref(manifest), dependents_first=True)
        context.waiter.gone(context.api, _ref(manifest), _CRD_S)
        change = context.api.apply(manifest)
    if change != "unchanged":
        context.say(f"  {change} {_ref(manifest)}")
    if manifest["kind"] == "CustomResourceDefinition":
        context.waiter.ready(context.api, [_ref(manifest)], _CRD_S)
        context.api.forget_kinds()


def _dry_run(context: Context, manifests: list[Manifest]) -> None:
    """The server checks each object; what it cannot check because a kind or namespace is still missing is said."""
    there = {m["metadata"]["name"] for m in context.api.list("v1", "Namespace", None)}
    for manifest in manifests:
        namespace = manifest["metadata"].get("namespace")
        try:
            if namespace and namespace not in there:
                context.say(f"  would create {_ref(manifest)} (not checked: its namespace is not there yet)")
                continue
            context.say(f"  would be {context.api.apply(manifest, dry_run=True)}: {_ref(manifest)}")
        except UnknownKindError:
            context.say(f"  would create {_ref(manifest)} (not checked: its kind is not there yet)")
        except InvalidError:
            if manifest["kind"] != "Job":
                raise
            context.say(f"  would be made anew: {_ref(manifest)}")


def _not_ready(context: Context, ref: Ref) -> str | None:
    try:
        found = context.api.get(ref)
    except UnknownKindError:
        return "its kind is not installed"
    if found is None:
        return "missing"
    state = readiness(found)
    return None if state.state == "ready" else state.text
