"""Stage 2: what the other stages build on. KubeRay (and Kyverno), EKS add-ons, the EBS driver's rights."""

from cluster.aws import addons, iam
from cluster.files import data
from cluster.stages.context import Context
from cluster.stages.objects import ObjectStage
from cluster.stages.stage import StageStatus

_INFERENCE = "amazon-sagemaker-hyperpod-inference"


class Operators(ObjectStage):
    name = "operators"
    title = "KubeRay, EKS add-ons, IAM"

    def plan(self, context: Context) -> list[str]:
        lines = [f"add-on {name} {self._version(context, name)}" for name in wanted_addons(context)]
        if context.config.aws and context.config.aws.ebs_csi_role:
            lines.append(f"inline policy {iam.POLICY} on role {context.config.aws.ebs_csi_role}")
        return lines + super().plan(context)

    def apply(self, context: Context) -> None:
        self._apply_iam(context)
        for name in wanted_addons(context):
            self._apply_addon(context, name)
        super().apply(context)

    def status(self, context: Context) -> StageStatus:
        of_objects = super().status(context)
        missing = [line for name in wanted_addons(context) if (line := _addon_problem(context, name))]
        if not missing:
            return of_objects
        state = "absent" if of_objects.state == "absent" else "partial"
        return StageStatus(state, (*of_objects.lines, *missing))  # type: ignore[arg-type]

    def destroy(self, context: Context) -> None:
        super().destroy(context)
        for name in reversed(wanted_addons(context)):
            if context.options.dry_run:
                context.say(f"  would delete add-on {name} if this project made it")
            else:
                context.say(f"  add-on {name}: {addons.remove(context.aws, name)}")
        if context.config.aws and context.config.aws.ebs_csi_role and not context.options.dry_run:
            context.say(f"  policy {iam.POLICY}: {iam.remove(context.aws)}")

    def _apply_iam(self, context: Context) -> None:
        if not (context.config.aws and context.config.aws.ebs_csi_role):
            return
        if context.options.dry_run:
            context.say(f"  would put policy {iam.POLICY} on role {context.config.aws.ebs_csi_role}")
        else:
            context.say(f"  policy {iam.POLICY}: {iam.put(context.aws)}")

    def _apply_addon(self, context: Context, name: str) -> None:
        version = self._version(context, name)
        if context.options.dry_run:
            found = addons.describe(context.aws, name)
            context.say(f"  add-on {name}: " + (f"there, {found.version}" if found else f"would create {version}"))
            return
        assert context.config.aws is not None
        settings = context.config.aws.addon_settings.get(name, {})
        context.say(f"  add-on {name}: {addons.install(context.aws, name, version, settings, context.waiter)}")

    def _version(self, context: Context, name: str) -> str:
        return addons.resolve(context.aws, name, str(data("versions")["addons"][name]), context.config.kubernetes)


def wanted_addons(context: Context) -> list[str]:
    """In the order of versions.yaml: what others need (cert-manager) comes first."""
    if context.config.aws is None:
        return []
    chosen = context.config.aws.addons
    if chosen is None:
        return [name for name in data("versions")["addons"] if name != _INFERENCE or context.config.endpoint]
    return [name for name in data("versions")["addons"] if name in chosen]


def _addon_problem(context: Context, name: str) -> str | None:
    found = addons.describe(context.aws, name)
    if found is None:
        return f"add-on {name}: missing"
    return None if found.status == "ACTIVE" else f"add-on {name}: {found.status} {found.issues}".rstrip()
