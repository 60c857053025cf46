"""The one configuration file of a cluster, as a typed tree. Wrong names, quantities and types are refused here.

    ClusterConfig
    ├── aws                region, HyperPod and EKS cluster; left out on a cluster that is not on AWS (kind)
    ├── workers, head      where Ray runs, and how much of it
    ├── storage            the shared L2: a Curvine file system, or a host directory for kind
    ├── tiered_storage     HyperPod's own node memory tier (stage 1)
    ├── redis              GCS fault tolerance
    └── endpoint           the alternative path: HyperPod's Inference Operator with an admission policy

Models, tiers and routing are not here: they are in the serve file that `serve_file` names.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from botocore.session import Session as BotocoreSession
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from app.errors import ClusterError, Loc, SettingsError
from app.names import hint
from app.settings_text import explain
from app.yaml_file import read_yaml
from cluster.files import data
from cluster.instances import instance
from cluster.limits import NAMESPACE_NAME, OBJECT_NAME, RAYSERVICE_NAME, check_label, check_quantity


def _as_text(value: object) -> object:
    """YAML reads `cpu: 2` as a number, and Kubernetes takes it as one."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _tagged(value: str) -> str:
    if not _IMAGE.fullmatch(value) or value.endswith(":latest"):
        raise ValueError(f"{value!r} must be REPOSITORY:TAG with a tag that is not latest")
    return value


def _known_type(value: str) -> str:
    try:
        instance(value)
    except ClusterError as error:
        raise ValueError(str(error)) from None
    return value


Quantity = Annotated[str, BeforeValidator(_as_text), AfterValidator(check_quantity)]
Image = Annotated[str, AfterValidator(_tagged)]
InstanceType = Annotated[str, AfterValidator(_known_type)]
# HyperPod's oldest; the charts want no newer one.
_OLDEST_MINOR = 28
_KUBERNETES = re.compile(r"1\.\d{1,2}")
_EKS_NAME = re.compile(r"[0-9A-Za-z][A-Za-z0-9_-]{0,99}")
_HYPERPOD_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_IMAGE = re.compile(r"[a-z0-9.\-:]+(/[a-z0-9._\-]+)*:[A-Za-z0-9_][A-Za-z0-9._\-]{0,127}(@sha256:[0-9a-f]{64})?")


@cache
def _regions() -> list[str]:
    """Known to the installed botocore: asked offline, which takes a moment. Whatever profile the user's environment
    names: what a file says is right or wrong without it."""
    return list(BotocoreSession(session_vars={"profile": (None, None, None, None)}).get_available_regions("sagemaker"))


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AwsSection(_Section):
    region: str
    hyperpod_cluster: str = Field(description="Name of the HyperPod cluster (SageMaker).")
    eks_cluster: str = Field(description="Name of the EKS cluster that orchestrates it.")
    profile: str | None = Field(None, description="Profile of the AWS credentials; None: the default chain.")
    ebs_csi_role: str | None = Field(
        None, description="IAM role of the EBS CSI driver; its HyperPod statements are added as an inline policy."
    )
    addons: tuple[str, ...] | None = Field(
        None,
        description="EKS add-ons to install. None: all of versions.yaml; the Inference Operator only with endpoint.",
    )
    addon_settings: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Configuration of an add-on.")
    addon_roles: dict[str, str] = Field(
        default_factory=dict, description="Add-on name -> ARN of its service account's role."
    )

    @field_validator("addons")
    @classmethod
    def _known_addons(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        unknown = [name for name in value or () if name not in data("versions")["addons"]]
        if unknown:
            raise ValueError(
                f"{', '.join(unknown)} not in versions.yaml; known: {', '.join(data('versions')['addons'])}"
            )
        return value

    @field_validator("region")
    @classmethod
    def _known_region(cls, value: str) -> str:
        known = _regions()
        if value not in known:
            raise ValueError(f"{value} is not a region with SageMaker; {hint(value.lower(), known, most=3)}")
        return value

    @field_validator("hyperpod_cluster")
    @classmethod
    def _hyperpod_name(cls, value: str) -> str:
        if not _HYPERPOD_NAME.fullmatch(value):
            raise ValueError("letters, digits and - only, at most 63, starting with a letter or digit")
        return value

    @field_validator("eks_cluster")
    @classmethod
    def _eks_name(cls, value: str) -> str:
        if not _EKS_NAME.fullmatch(value):
            raise ValueError("letters, digits, - and _ only, at most 100, starting with a letter or digit")
        return value


class WorkersSection(_Section):
    """Ray workers: one pod per node, with all GPUs of it, so that the replicas of a node share one L1."""

    instance_type: InstanceType | None = Field(
        None, description="HyperPod type of the nodes. None: give cpu and memory."
    )
    count: int = Field(ge=1)
    max_count: int | None = Field(None, description="Autoscaling up to here; None: always `count`.")
    cpu: Quantity | None = Field(None, description="Instead of what is computed from the instance type.")
    memory: Quantity | None = None

    @model_validator(mode="after")
    def _sized(self) -> "WorkersSection":
        if self.instance_type is None and (self.cpu is None or self.memory is None):
            raise ValueError("give instance_type, or cpu and memory")
        if self.max_count is not None and self.max_count < self.count:
            raise ValueError(f"max_count {self.max_count} is below count {self.count}")
        return self


class HeadSection(_Section):
    cpu: Quantity = "2"
    memory: Quantity = "8Gi"
    on_worker_nodes: bool = Field(True, description="The head shares the workers' nodes: room is left for it there.")


class StorageSection(_Section):
    """The shared L2. `mount_path` is where every Ray pod sees it."""

    backend: Literal["curvine", "hostpath"] = "curvine"
    mount_path: str = "/mnt/curvine/l2cache"
    claim: Quantity = Field("1Ti", description="Of the claim. Curvine does not enforce it; the pool bounds itself.")
    masters: int = Field(1, description="Curvine masters (odd). Cannot be changed once running.")
    master_storage_class: str = Field(
        "tierserve-gp3", description="EBS class for Curvine's metadata and journal, and Redis."
    )
    master_meta: Quantity = "10Gi"
    master_journal: Quantity = "50Gi"
    nvme_path: str = Field("/opt/dlami/nvme/curvine", description="Directory on the nodes' local NVMe.")
    nvme_size: Quantity = Field("400Gi", description="How much of it a Curvine worker may fill.")
    ttl_hours: int = Field(
        24, ge=1, description="Files older than this are deleted by Curvine, whatever the pool does."
    )
    rpc_timeout_ms: int = Field(
        3000, ge=100, description="Of every Curvine client call: a hung master is a miss, not a hang."
    )
    read_ahead_kb: int = Field(1024, ge=128)
    host_path: str = Field("/var/lib/tierserve-l2", description="For `hostpath`: the directory that all nodes share.")

    @field_validator("master_storage_class")
    @classmethod
    def _class_name(cls, value: str) -> str:
        return check_label(value, OBJECT_NAME, "name of a StorageClass")

    @field_validator("masters")
    @classmethod
    def _odd(cls, value: int) -> int:
        if value < 1 or value % 2 == 0:
            raise ValueError(f"masters must be odd (Raft), not {value}")
        return value

    @field_validator("mount_path", "nvme_path", "host_path")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/") or ".." in value or value != value.rstrip("/"):
            raise ValueError(f"{value!r} must be an absolute path without .. and without a / at its end")
        return value


class TieredStorageSection(_Section):
    memory_percent: int = Field(20, ge=20, le=100, description="Share of each node's memory that HyperPod takes.")


class EndpointSection(_Section):
    """The Inference Operator's own endpoint beside the RayService, with the Curvine volume added by admission."""

    model_name: Annotated[str, AfterValidator(lambda value: check_label(value, OBJECT_NAME, "name of the endpoint"))]
    model_id: str = Field(description="Hugging Face id of the weights.")
    commit: str | None = Field(None, pattern=r"^[0-9a-f]{40}$")
    image: Image
    instance_type: InstanceType
    replicas: int = Field(2, ge=1)
    routing: Literal["prefixaware", "kvaware", "session", "roundrobin"] = "prefixaware"
    max_model_len: int = Field(8192, gt=0)

    @model_validator(mode="after")
    def _has_gpus(self) -> "EndpointSection":
        if instance(self.instance_type).gpus == 0:
            raise ValueError(f"instance_type {self.instance_type} has no GPU")
        return self


class ClusterConfig(_Section):
    name: str = "tierserve"
    namespace: str = "tierserve"
    kubernetes: str = Field(
        "1.33", description="Version of the cluster (major.minor). `apply` compares it with the server."
    )
    kube_context: str | None = Field(None, description="Context of the kubeconfig; None on AWS: straight from EKS.")
    aws: AwsSection | None = None
    image: Image = Field(description="The project's own image, built from cluster/images.")
    serve_file: Path
    workers: WorkersSection
    head: HeadSection = HeadSection()
    storage: StorageSection = StorageSection()
    tiered_storage: TieredStorageSection | None = None
    endpoint: EndpointSection | None = None
    client_namespaces: tuple[str, ...] = Field((), description="Namespaces whose pods may call the endpoint.")
    metrics_namespaces: tuple[str, ...] = Field((), description="Namespaces whose pods (Prometheus) may read metrics.")

    @field_validator("name")
    @classmethod
    def _service_name(cls, value: str) -> str:
        return check_label(value, RAYSERVICE_NAME, "name of the RayService", letter_first=True)

    @field_validator("namespace")
    @classmethod
    def _namespace_name(cls, value: str) -> str:
        others = {"default", *(chart["namespace"] for chart in data("versions")["charts"].values())}
        if value in others or value.startswith("kube-"):
            raise ValueError(f"{value} belongs to others: `destroy` deletes the namespace; take one for this alone")
        return check_label(value, NAMESPACE_NAME, "namespace")

    @field_validator("client_namespaces", "metrics_namespaces")
    @classmethod
    def _client_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_label(each, NAMESPACE_NAME, f"namespace {each}") for each in value)

    @field_validator("kubernetes", mode="before")
    @classmethod
    def _version(cls, value: object) -> object:
        if not isinstance(value, str) or not _KUBERNETES.fullmatch(value):
            raise ValueError(f"{value!r} is not major.minor in quotes, e.g. '1.33' (YAML reads 1.30 as 1.3)")
        if int(value.split(".")[1]) < _OLDEST_MINOR:
            raise ValueError(f"{value} is too old: 1.{_OLDEST_MINOR} or later")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "ClusterConfig":
        if self.tiered_storage is not None and self.aws is None:
            raise ValueError("tiered_storage is HyperPod's: give `aws`, or leave it out")
        if self.endpoint is not None and (self.aws is None or self.storage.backend != "curvine"):
            raise ValueError("endpoint needs `aws` and storage.backend curvine")
        if self.aws is None and self.kube_context is None:
            raise ValueError("give `aws`, or `kube_context` for a cluster that is not on AWS")
        if self.storage.backend == "curvine" and self.aws is None:
            raise ValueError("storage.backend curvine keeps its metadata on EBS: give `aws`, or use hostpath")
        return self

    @property
    def minor(self) -> int:
        return int(self.kubernetes.split(".")[1])

    @property
    def native_policy(self) -> bool:
        """Kubernetes' own MutatingAdmissionPolicy is there (1.36); below it Kyverno does the same."""
        return self.minor >= 36


def _nowhere(loc: Loc) -> str:
    return "configuration"


def parse_config(document: Mapping[str, Any], where: Callable[[Loc], str] = _nowhere) -> ClusterConfig:
    """Raises ClusterError: one line per problem, each with the file and its line (`where`) and the path of the key."""
    try:
        return ClusterConfig.model_validate(dict(document))
    except ValidationError as error:
        details = error.errors(include_url=False)
        lines = [f"{where(detail['loc'])}: {explain(detail, ClusterConfig)}" for detail in details]
        raise ClusterError("\n".join(lines)) from None


def load_config(path: Path) -> ClusterConfig:
    """Read and check a file; `serve_file` is taken relative to it. Raises ClusterError."""
    try:
        read = read_yaml(path)
    except SettingsError as error:
        raise ClusterError(str(error)) from None
    if not isinstance(read.document, dict):
        raise ClusterError(f"{path}: must be a mapping; see cluster/configs/g6e-fleet.yaml")
    config = parse_config(read.document, read.at)
    return config.model_copy(update={"serve_file": (path.parent / config.serve_file).resolve()})
