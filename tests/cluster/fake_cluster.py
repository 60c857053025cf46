"""A Kubernetes API server in memory, at the transport: discovery, server-side apply with owners, deletion, and
controllers that make everything ready at once. Failures are put in by `script`."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cluster.kube.transport import Answer, Call, ConnectionLostError

# kind -> (api version, plural, namespaced)
KINDS = {
    "Namespace": ("v1", "namespaces", False),
    "ConfigMap": ("v1", "configmaps", True),
    "Secret": ("v1", "secrets", True),
    "Service": ("v1", "services", True),
    "ServiceAccount": ("v1", "serviceaccounts", True),
    "Pod": ("v1", "pods", True),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims", True),
    "PersistentVolume": ("v1", "persistentvolumes", False),
    "Deployment": ("apps/v1", "deployments", True),
    "DaemonSet": ("apps/v1", "daemonsets", True),
    "StatefulSet": ("apps/v1", "statefulsets", True),
    "Job": ("batch/v1", "jobs", True),
    "StorageClass": ("storage.k8s.io/v1", "storageclasses", False),
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "Role": ("rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings", True),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies", True),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets", True),
}

Scripted = Answer | ConnectionLostError


def refusal(status: int, message: str, reason: str = "", **details: Any) -> Answer:
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": status}
    return Answer(status, json.dumps(body | ({"details": details} if details else {})))


@dataclass
class FakeCluster:
    version: str = "1.33"
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    kinds: dict[str, tuple[str, str, bool]] = field(default_factory=lambda: dict(KINDS))
    calls: list[tuple[str, str]] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)  # names that never become ready
    failing: set[str] = field(default_factory=set)  # names of Jobs that fail
    owners: dict[tuple[str, str], str] = field(default_factory=dict)
    endpoint_state: str = "DeploymentInProgress"
    _script: list[tuple[Callable[[str, str], bool], Scripted]] = field(default_factory=list)
    _revision: int = 0

    def script(self, method: str, part: str, *answers: Scripted) -> None:
        """The next requests of `method` whose path contains `part` get these answers, one each."""
        for answer in answers:
            self._script.append((partial(_matches, method, part), answer))

    def send(self, call: Call) -> Answer:
        self.calls.append((call.method, call.path))
        for position, (matches, answer) in enumerate(self._script):
            if matches(call.method, call.path):
                del self._script[position]
                if isinstance(answer, ConnectionLostError):
                    raise answer
                return answer
        body = json.loads(call.body) if call.body else {}
        return self._serve(call.method, call.path, dict(call.query or {}), body)

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path in self.calls if method != "GET"]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.objects.values() if each["kind"] == kind]

    def names(self, kind: str) -> list[str]:
        return sorted(each["metadata"]["name"] for each in self.of(kind))

    def add(self, manifest: dict[str, Any]) -> None:
        """Put an object there as somebody else would."""
        self._store(self._path_of(manifest), manifest)

    def _serve(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        if path == "/version":
            major, minor = self.version.split(".")
            return Answer(200, json.dumps({"major": major, "minor": f"{minor}+"}))
        if path.endswith("/log"):
            return Answer(200, self.logs.get(path.split("/")[-2], ""))
        group = self._discovery(path)
        if group is not None:
            return group
        if method == "GET":
            return self._get(path, query)
        if method == "DELETE":
            return self._delete(path)
        if method == "POST":
            return self._create(f"{path}/{body['metadata']['name']}", body)
        return self._apply(path, query, body)

    def _discovery(self, path: str) -> Answer | None:
        parts = path.strip("/").split("/")
        version = parts[1] if parts[0] == "api" and len(parts) == 2 else None
        if parts[0] == "apis" and len(parts) == 3:
            version = "/".join(parts[1:])
        if version is None:
            return None
        found = [
            {"name": plural, "kind": kind, "namespaced": namespaced}
            for kind, (api, plural, namespaced) in self.kinds.items()
            if api == version
        ]
        return Answer(200, json.dumps({"resources": found})) if found else refusal(404, "the server could not find it")

    def _get(self, path: str, query: dict[str, str]) -> Answer:
        if path in self.objects:
            return Answer(200, json.dumps(self.objects[path]))
        plural = path.rsplit("/", 1)[-1]
        kind = next((kind for kind, (_, name, _) in self.kinds.items() if name == plural), None)
        if kind is None:
            return refusal(404, f"{path} not found")
        prefix = path.rsplit("/", 1)[0]
        found = [each for where, each in self.objects.items() if each["kind"] == kind and where.startswith(prefix)]
        wanted = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if part)
        matching = [e for e in found if wanted.items() <= (e["metadata"].get("labels") or {}).items()]
        return Answer(200, json.dumps({"items": matching}))

    def _create(self, path: str, body: dict[str, Any]) -> Answer:
        if path in self.objects:
            return refusal(409, "already exists", "AlreadyExists")
        self._store(path, body)
        return Answer(201, json.dumps(self.objects[path]))

    def _apply(self, path: str, query: dict[str, str], body: dict[str, Any]) -> Answer:
        namespace = body["metadata"].get("namespace")
        if namespace and namespace not in self.names("Namespace"):
            return refusal(404, f'namespaces "{namespace}" not found', "NotFound")
        conflict = self._conflict(path, body, query)
        if conflict is not None:
            return conflict
        merged = _merge(self.objects.get(path, {}), body)
        if query.get("dryRun") == "All":
            return Answer(200, json.dumps(merged))
        if merged != self.objects.get(path):
            self._store(path, merged)
        return Answer(200, json.dumps(self.objects[path]))

    def _conflict(self, path: str, body: dict[str, Any], query: dict[str, str]) -> Answer | None:
        for (where, key), owner in self.owners.items():
            changed = where == path and key in body.get("spec", {}) and path in self.objects
            if changed and body["spec"][key] != self.objects[path]["spec"].get(key) and query["force"] != "true":
                cause = {
                    "reason": "FieldManagerConflict",
                    "message": f'conflict with "{owner}"',
                    "field": f".spec.{key}",
                }
                return refusal(409, "Apply failed with 1 conflict", "Conflict", causes=[cause])
        return None

    def _delete(self, path: str) -> Answer:
        found = self.objects.pop(path, None)
        if found is None:
            return refusal(404, "not found")
        if found["kind"] == "PersistentVolumeClaim":
            volume = found["spec"].get("volumeName")
            self.objects.pop(f"/api/v1/persistentvolumes/{volume}", None)
        if found["kind"] == "Job":
            for where in [w for w, o in self.objects.items() if _belongs(o, found["metadata"]["name"])]:
                del self.objects[where]
        return Answer(200, "{}")

    def _store(self, path: str, manifest: dict[str, Any]) -> None:
        self._revision += 1
        meta = {**manifest["metadata"], "resourceVersion": str(self._revision), "generation": 1}
        self.objects[path] = {**manifest, "metadata": meta}
        if manifest["kind"] == "CustomResourceDefinition":
            spec = manifest["spec"]
            api = f"{spec['group']}/{spec['versions'][0]['name']}"
            self.kinds[spec["names"]["kind"]] = (api, spec["names"]["plural"], spec["scope"] == "Namespaced")
        self._control(self.objects[path])

    def _control(self, manifest: dict[str, Any]) -> None:
        """What controllers would do, at once."""
        if manifest["metadata"]["name"] in self.stuck:
            return
        control = getattr(self, f"_control_{manifest['kind'].lower()}", None)
        if control is not None:
            control(manifest)

    def _control_customresourcedefinition(self, manifest: dict[str, Any]) -> None:
        manifest["status"] = {"conditions": [{"type": "Established", "status": "True"}]}

    def _control_deployment(self, manifest: dict[str, Any]) -> None:
        count = manifest["spec"].get("replicas", 1)
        manifest["status"] = {"availableReplicas": count, "updatedReplicas": count, "observedGeneration": 1}

    def _control_daemonset(self, manifest: dict[str, Any]) -> None:
        manifest["status"] = {"desiredNumberScheduled": 2, "numberReady": 2, "updatedNumberScheduled": 2}

    def _control_statefulset(self, manifest: dict[str, Any]) -> None:
        count = manifest["spec"].get("replicas", 1)
        manifest["status"] = {"readyReplicas": count, "updatedReplicas": count}
        for template in manifest["spec"].get("volumeClaimTemplates", []):
            meta = manifest["metadata"]
            name = f"{template['metadata']['name']}-{meta['name']}-0"
            claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": dict(template["spec"])}
            claim["metadata"] = {"name": name, "namespace": meta["namespace"]}
            self._store(self._path_of(claim), claim)

    def _control_persistentvolumeclaim(self, manifest: dict[str, Any]) -> None:
        volume = f"pv-{manifest['metadata']['name']}"
        manifest["spec"]["volumeName"] = volume
        manifest["status"] = {"phase": "Bound"}
        self.add(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {"persistentVolumeReclaimPolicy": "Delete", "csi": {"volumeHandle": f"vol-{len(volume)}"}},
            }
        )

    def _control_job(self, manifest: dict[str, Any]) -> None:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        manifest["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        if name in self.failing:
            message = "BackoffLimitExceeded"
            manifest["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": message}]}
        node = "node-b" if "read" in name else "node-a"
        labels = {"job-name": name}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-x", "namespace": namespace}}
        pod["metadata"]["labels"] = labels  # type: ignore[index]
        self.add(pod | {"spec": {"nodeName": node}, "status": {"phase": "Succeeded"}})

    def _control_rayservice(self, manifest: dict[str, Any]) -> None:
        manifest["status"] = {
            "observedGeneration": 1,
            "numServeEndpoints": 2,
            "conditions": [{"type": "Ready", "status": "True", "reason": "NonZeroServeEndpoints"}],
            "activeServiceStatus": {"applicationStatuses": {"app": {"status": "RUNNING"}}},
        }

    def _control_inferenceendpointconfig(self, manifest: dict[str, Any]) -> None:
        manifest["status"] = {"state": self.endpoint_state}

    def _path_of(self, manifest: dict[str, Any]) -> str:
        api, plural, namespaced = self.kinds[manifest["kind"]]
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        within = f"/namespaces/{manifest['metadata']['namespace']}" if namespaced else ""
        return f"{root}{within}/{plural}/{manifest['metadata']['name']}"


def _matches(method: str, part: str, asked: str, path: str) -> bool:
    return method == asked and part in path


def _belongs(manifest: dict[str, Any], job: str) -> bool:
    return bool((manifest["metadata"].get("labels") or {}).get("job-name") == job)


def _merge(base: Any, change: Any) -> Any:
    if isinstance(base, dict) and isinstance(change, dict):
        return {**base, **{key: _merge(base.get(key), value) for key, value in change.items()}}
    return change


@dataclass
class FakeClock:
    """Sleeping takes no time but lets it pass."""

    time: float = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
