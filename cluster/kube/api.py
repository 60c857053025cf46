"""The Kubernetes API as this project needs it: get, list, create, server-side apply, delete, logs.

Every call is retried while the answer is a passing one (see errors.TRANSIENT) or none came: all calls here can be
repeated without harm (`create` treats "already exists" after a lost answer as done).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.errors import ClusterError
from cluster.clock import Clock
from cluster.kube.errors import TRANSIENT, UnknownKindError, refused
from cluster.kube.transport import Answer, Call, ConnectionLostError, Transport
from cluster.render.objects import Manifest, Ref

FIELD_MANAGER = "tierserve"
_ATTEMPTS = 6
_APPLY = "application/apply-patch+yaml"

Change = Literal["created", "changed", "unchanged"]


@dataclass(frozen=True)
class Resource:
    plural: str
    namespaced: bool


class Api:
    """Blocking, for one thread. Raises ClusterError (see errors.py) for everything that is not a success."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport, self._clock = transport, clock
        self._resources: dict[tuple[str, str], Resource] = {}

    def version(self) -> tuple[int, int]:
        """(major, minor) of the server; a suffix such as EKS's `+` is dropped."""
        body = self._ok("read", "the version of the cluster", self._send(Call("GET", "/version")))
        return int(body["major"]), int("".join(c for c in body["minor"] if c.isdigit()))

    def get(self, ref: Ref) -> Manifest | None:
        answer = self._send(Call("GET", self._path(ref)))
        return None if answer.status == 404 else self._ok("get", str(ref), answer)

    def list(self, api_version: str, kind: str, namespace: str | None, selector: str = "") -> list[Manifest]:
        """Objects in a namespace (None: everywhere) whose labels match `selector`."""
        base = self._base(api_version, self._resource(api_version, kind), namespace)
        answer = self._send(Call("GET", base, {"labelSelector": selector} if selector else None))
        return list(self._ok("list", f"{kind} objects", answer).get("items") or [])

    def create(self, manifest: Manifest) -> bool:
        """Create an object; False if one of that name is there already (it is left as it is)."""
        ref = self.resolved(manifest)
        answer = self._send(Call("POST", self._path(ref).rsplit("/", 1)[0], body=json.dumps(manifest)))
        if answer.status == 409:
            return False
        self._ok("create", str(ref), answer)
        return True

    def apply(self, manifest: Manifest, *, dry_run: bool = False, force: bool = False) -> Change:
        """Server-side apply; says whether anything changed. With `dry_run` the server checks and stores nothing."""
        ref = self.resolved(manifest)
        before = self.get(ref)
        query = {"fieldManager": FIELD_MANAGER, "force": str(force).lower()} | ({"dryRun": "All"} if dry_run else {})
        body = {**manifest, "metadata": {**manifest["metadata"]}}
        body["metadata"].pop("namespace", None)
        if ref.namespace:
            body["metadata"]["namespace"] = ref.namespace
        answer = self._send(Call("PATCH", self._path(ref), query, json.dumps(body), _APPLY))
        after = self._ok("apply", str(ref), answer)
        if before is None:
            return "created"
        return "unchanged" if _essence(before) == _essence(after) else "changed"

    def delete(self, ref: Ref, *, dependents_first: bool = False) -> bool:
        """Ask for deletion; False if it was not there.

        With `dependents_first` the object stays until all that it owns is gone: waiting for it then waits for all.
        """
        body = json.dumps({"propagationPolicy": "Foreground" if dependents_first else "Background"})
        answer = self._send(Call("DELETE", self._path(ref), body=body))
        if answer.status == 404:
            return False
        self._ok("delete", str(ref), answer)
        return True

    def logs(self, namespace: str, pod: str) -> str:
        answer = self._send(Call("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log"))
        if answer.status != 200:
            raise refused("read the log of", f"pod {namespace}/{pod}", answer)
        return answer.text

    def resolved(self, manifest: Mapping[str, Any]) -> Ref:
        """The reference with its namespace as the server has it: none for kinds that have none."""
        meta, kind = manifest["metadata"], manifest["kind"]
        namespaced = self._resource(manifest["apiVersion"], kind).namespaced
        namespace = (meta.get("namespace") or "default") if namespaced else None
        return Ref(manifest["apiVersion"], kind, namespace, meta["name"])

    def forget_kinds(self) -> None:
        """Ask the server again which kinds it serves (after a CRD was installed)."""
        self._resources.clear()

    def _path(self, ref: Ref) -> str:
        resource = self._resource(ref.api_version, ref.kind)
        return f"{self._base(ref.api_version, resource, ref.namespace)}/{ref.name}"

    def _base(self, api_version: str, resource: Resource, namespace: str | None) -> str:
        within = f"/namespaces/{namespace}" if resource.namespaced and namespace else ""
        return f"{_root(api_version)}{within}/{resource.plural}"

    def _resource(self, api_version: str, kind: str) -> Resource:
        if (api_version, kind) not in self._resources:
            self._discover(api_version)
        try:
            return self._resources[api_version, kind]
        except KeyError:
            message = f"the cluster does not know the kind {kind} ({api_version}): apply the stage operators first"
            raise UnknownKindError(message) from None

    def _discover(self, api_version: str) -> None:
        answer = self._send(Call("GET", _root(api_version)))
        if answer.status == 404:
            return
        for entry in self._ok("read", f"the kinds of {api_version}", answer).get("resources", []):
            if "/" not in entry["name"]:
                self._resources[api_version, entry["kind"]] = Resource(entry["name"], entry["namespaced"])

    def _ok(self, action: str, what: str, answer: Answer) -> dict[str, Any]:
        if not 200 <= answer.status < 300:
            raise refused(action, what, answer)
        return answer.body

    def _send(self, call: Call) -> Answer:
        for attempt in range(_ATTEMPTS):
            last = attempt == _ATTEMPTS - 1
            try:
                answer = self._transport.send(call)
                if answer.status not in TRANSIENT or last:
                    return answer
            except ConnectionLostError as error:
                if last:
                    raise ClusterError(
                        f"the connection to the cluster is lost ({error}); everything done so far is kept: apply again"
                    ) from error
            self._clock.sleep(2.0**attempt)
        raise AssertionError("the last attempt returns or raises")


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _essence(manifest: Manifest) -> dict[str, Any]:
    """An object without what changes by itself."""
    moving = {"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"}
    meta = {key: value for key, value in manifest.get("metadata", {}).items() if key not in moving}
    return {key: value for key, value in manifest.items() if key not in ("metadata", "status")} | {"metadata": meta}
