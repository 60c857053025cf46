"""Every value that a placeholder in cluster/manifests and cluster/charts may name, made from the configuration."""

from collections.abc import Iterable
from math import floor
from pathlib import PurePosixPath
from typing import Any

from app.errors import ClusterError
from cluster.config import ClusterConfig
from cluster.files import data
from cluster.instances import instance
from cluster.limits import quantity
from cluster.render.serve_document import ServeDocument
from cluster.render.sizing import worker_size

# The user of the project's image (cluster/images).
UID = 1000
_HYPERPOD = {"sagemaker.amazonaws.com/compute-type": "hyperpod"}


def values(config: ClusterConfig, serve: ServeDocument) -> dict[str, Any]:
    """Raises ClusterError when the serve file and the configuration contradict each other."""
    versions = data("versions")
    size = worker_size(config, serve)
    return {
        "name": config.name,
        "namespace": config.namespace,
        "image": config.image,
        "uid": UID,
        "pod_security": "privileged" if config.endpoint else "baseline",
        "claim": f"{config.name}-l2",
        "ray_version": str(versions["ray"]),
        "charts": versions["charts"],
        "images": versions["images"],
        "curvine_image": _split(versions["images"]["curvine"]),
        "csi_image": _split(versions["images"]["curvine-csi"]),
        "serve_config": serve.text,
        "api_keys": [{"key": key, "generate": True} for key in serve.api_key_variables],
        "probe_key": (serve.api_key_variables or ["TIERSERVE_API_KEY"])[0],
        "storage": _storage(config, serve),
        "redis_storage_class": config.storage.master_storage_class if config.aws else "standard",
        "nodes": _nodes(config),
        "head": config.head.model_dump(),
        "workers": {
            "count": config.workers.count,
            "min_available": config.workers.count - 1,
            "max_count": config.workers.max_count or config.workers.count,
            "cpu": size.cpu,
            "memory": size.memory,
            "num_cpus": str(max(1, floor(quantity(size.cpu)))),
            "gpus": str(size.gpus),
            "shm": size.shm,
            "object_store_bytes": str(size.object_store_bytes),
        },
        "client_peers": _peers(config.client_namespaces),
        "metrics_peers": _peers(config.metrics_namespaces),
        "endpoint": _endpoint(config),
        "format": False,
    }


def _split(image: str) -> dict[str, str]:
    repository, _, tag = image.rpartition(":")
    return {"repository": repository, "tag": tag}


def _storage(config: ClusterConfig, serve: ServeDocument) -> dict[str, Any]:
    storage, curvine = config.storage, data("versions")["charts"]["curvine"]["namespace"]
    masters = [f"curvine-master-{i}.curvine-master.{curvine}.svc.cluster.local:8995" for i in range(storage.masters)]
    return storage.model_dump() | {
        "class": f"{config.name}-l2" if storage.backend == "curvine" else "manual",
        "master_addrs": ",".join(masters),
        "ttl_ms": str(storage.ttl_hours * 3_600_000),
        "rpc_timeout_ms": str(storage.rpc_timeout_ms),
        "read_ahead_kb": str(storage.read_ahead_kb),
        "pool": str(_pool(config, serve)),
        # LMCache's in-process mode has another file format: never among the files of our pool.
        "endpoint_pool": f"{storage.mount_path}/endpoint",
    }


def _pool(config: ClusterConfig, serve: ServeDocument) -> PurePosixPath:
    """The one directory of the pool, inside the mount (whose own root belongs to root)."""
    mount = PurePosixPath(config.storage.mount_path)
    pools = serve.l2_pools or [mount / "pool"]
    outside = [str(pool) for pool in pools if mount not in pool.parents]
    if outside:
        raise ClusterError(
            f"{serve.path.name}: l2.path {', '.join(outside)} is not a directory under storage.mount_path {mount}: "
            "what is written there would not be shared between the nodes"
        )
    if len(pools) > 1:
        raise ClusterError(
            f"{serve.path.name}: several l2.path ({', '.join(map(str, pools))}); give all models one pool"
        )
    return pools[0]


def _nodes(config: ClusterConfig) -> dict[str, Any]:
    if config.aws is None:
        return {"selector": {}, "worker_selector": {}, "affinity": {}, "tolerations": []}
    kind = {"node.kubernetes.io/instance-type": config.workers.instance_type} if config.workers.instance_type else {}
    healthy = {"key": "sagemaker.amazonaws.com/node-health-status", "operator": "In", "values": ["Schedulable"]}
    passed = {"key": "sagemaker.amazonaws.com/deep-health-check-status", "operator": "In", "values": ["Passed"]}
    return {
        "selector": _HYPERPOD,
        "worker_selector": _HYPERPOD | kind,
        # Required: not under repair. Preferred: passed its deep health check (not every cluster runs those).
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [healthy]}]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 100, "preference": {"matchExpressions": [passed]}}
                ],
            }
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }


def _peers(namespaces: Iterable[str]) -> list[dict[str, Any]]:
    """Labelled clients and whoever is in one of these. Never empty: an empty `from` in a NetworkPolicy lets everybody
    in."""
    ours = {"podSelector": {"matchLabels": {"tierserve.io/client": "true"}}}
    others = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}} for name in namespaces]
    return [ours, *others]


def _endpoint(config: ClusterConfig) -> dict[str, Any]:
    if config.endpoint is None:
        return {}
    gpus = instance(config.endpoint.instance_type).gpus
    # Whatever is quoted in the file: a placeholder keeps its value's type, and these must be strings.
    return config.endpoint.model_dump() | {"gpus": str(gpus), "max_model_len": str(config.endpoint.max_model_len)}
