"""Stage 4: Ray Serve with its secrets, Redis and policies; the Inference Operator's endpoint if configured."""

import base64
import secrets
from typing import Any

from app.errors import ClusterError
from cluster.render.objects import PART_OF, STAGE_LABEL, Manifest, Ref
from cluster.stages.context import Context
from cluster.stages.objects import ObjectStage
from cluster.stages.removal import confirm_gone, remove, remove_claims, volumes_of


class Serving(ObjectStage):
    name = "serving"
    title = "Ray Serve"

    def plan(self, context: Context) -> list[str]:
        keys = [f"Secret {s['name']} ({', '.join(k['key'] for k in s['keys'])})" for s in context.renderer.secrets()]
        return keys + super().plan(context)

    def check(self, context: Context) -> None:
        claim = Ref("v1", "PersistentVolumeClaim", context.config.namespace, context.renderer.values["claim"])
        found = context.api.get(claim)
        if found is None and not context.options.dry_run:
            raise ClusterError(f"{claim} is not there: apply the stage curvine first")

    def apply(self, context: Context) -> None:
        made = [] if context.options.dry_run else self._make_secrets(context)
        self.apply_objects(context)
        if made:
            context.say(f"  new API keys are in Secret {context.config.name}-api-keys (shown by nobody but kubectl)")

    def verify(self, context: Context) -> list[str]:
        lines = super().verify(context)
        ref = Ref("ray.io/v1", "RayService", context.config.namespace, context.config.name)
        service = context.api.get(ref)
        endpoints = ((service or {}).get("status") or {}).get("numServeEndpoints", 0)
        return [*lines, f"{endpoints} serve endpoints behind {context.config.name}-serve-svc:8000"]

    def destroy(self, context: Context) -> None:
        redis = f"data-{context.config.name}-redis-"
        names = [
            c["metadata"]["name"] for c in context.api.list("v1", "PersistentVolumeClaim", context.config.namespace)
        ]
        claims = [name for name in names if name.startswith(redis)]
        volumes, disks = volumes_of(context, context.config.namespace, claims)
        inventory = self.inventory(context)
        remove(context, inventory.read())
        remove_claims(context, context.config.namespace, redis)
        if not context.options.dry_run:
            confirm_gone(context, volumes, disks)
            inventory.drop()

    def _make_secrets(self, context: Context) -> list[Ref]:
        """Create the secrets that are not there; one that is there is never touched. In the inventory first."""
        missing = {}
        for each in context.renderer.secrets():
            ref = Ref("v1", "Secret", context.config.namespace, each["name"])
            content = secret_content(each, context.environment)
            if content and context.api.get(ref) is None:
                missing[ref] = content
        inventory = self.inventory(context)
        inventory.write([*inventory.read(), *missing])
        made = [ref for ref, content in missing.items() if context.api.create(_secret(ref, content))]
        for ref in made:
            context.say(f"  created {ref}")
        return [ref for ref in made if ref.name.endswith("-api-keys")]


def secret_content(wanted: dict[str, Any], environment: dict[str, str]) -> dict[str, str]:
    """The values of a secret: from the environment, else random where that makes sense."""
    content = {}
    for entry in wanted["keys"]:
        value = environment.get(entry.get("from", entry["key"])) or (
            secrets.token_urlsafe(32) if entry["generate"] else ""
        )
        if value:
            content[entry["key"]] = value
    return content


def _secret(ref: Ref, content: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "labels": {**PART_OF, STAGE_LABEL: "serving"},
        },
        "type": "Opaque",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in content.items()},
    }
