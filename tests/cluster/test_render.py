"""What the rendered objects say, beyond being valid."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ClusterError
from cluster.config import load_config
from cluster.files import CONFIGS, data
from cluster.limits import quantity
from cluster.render.bundle import Renderer
from cluster.render.objects import to_yaml
from cluster.render.overlay import merge
from cluster.render.template import fill
from tests.cluster.conftest import renderer
from tests.cluster.test_manifests_valid import objects, pod_templates

ROOT = Path(__file__).parents[2]


def ray_service(of: Renderer) -> dict[str, Any]:
    (service,) = [o for o in of.bundle("serving").objects if o["kind"] == "RayService"]
    return service["spec"]  # type: ignore[no-any-return]


def test_serve_config_is_the_file_itself(rendered: Renderer) -> None:
    """One source: byte for byte the file in serve_configs, also after a trip through YAML."""
    text = rendered.config.serve_file.read_text()
    assert rendered.config.serve_file.parent == ROOT / "serve_configs"
    assert ray_service(rendered)["serveConfigV2"] == text
    printed = list(yaml.safe_load_all(to_yaml(rendered.bundle("serving").objects)))
    (service,) = [o for o in printed if o["kind"] == "RayService"]
    assert service["spec"]["serveConfigV2"] == text


def test_yaml_round_trip(rendered: Renderer) -> None:
    everything = objects(rendered)
    assert list(yaml.safe_load_all(to_yaml(everything))) == everything


def test_ray_is_the_version_of_the_project(rendered: Renderer) -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (ray,) = [d for d in dependencies if d.startswith("ray[")]
    assert ray_service(rendered)["rayClusterConfig"]["rayVersion"] == ray.split("==")[1] == data("versions")["ray"]


def test_an_upgrade_does_not_need_every_gpu_twice(rendered: Renderer) -> None:
    assert ray_service(rendered)["upgradeStrategy"] == {"type": "None"}


def test_a_worker_is_out_of_its_service_before_it_stops_and_has_time_to_stop(rendered: Renderer) -> None:
    (group,) = ray_service(rendered)["rayClusterConfig"]["workerGroupSpecs"]
    spec = group["template"]["spec"]
    _, _, script = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    found = re.fullmatch(r"sleep (\d+); exec ray stop --grace-period (\d+)", script)
    assert found is not None
    assert int(found[1]) >= 15, "answers under way have as long when Serve stops a replica"
    assert int(found[1]) + int(found[2]) < spec["terminationGracePeriodSeconds"]


def test_gpu_pods_take_the_whole_node(fleet: Renderer) -> None:
    (group,) = ray_service(fleet)["rayClusterConfig"]["workerGroupSpecs"]
    resources = group["template"]["spec"]["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "1"
    assert (
        ray_service(renderer("tensor-parallel-32b"))["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"][
            "containers"
        ][0]["resources"]["limits"]["nvidia.com/gpu"]
        == "4"
    )


def test_kind_asks_for_no_gpu_and_no_hyperpod_node() -> None:
    text = to_yaml(objects(renderer("kind-cpu")))
    assert "nvidia.com/gpu" not in text
    assert "hyperpod" not in text


def test_kinds_ray_pods_fit_beside_each_other_on_a_node_of_two_cpus() -> None:
    """The head lands on a worker's node; kind's network, Redis and KubeRay's operator ask for 100m each beside them."""
    asked = [
        float(quantity(template["spec"]["containers"][0]["resources"]["requests"]["cpu"]))
        for template in pod_templates(renderer("kind-cpu"))
    ]
    assert len(asked) >= 2
    assert sum(asked) <= 2 - 0.3


def test_ray_pods_run_on_healthy_hyperpod_nodes_only(fleet: Renderer) -> None:
    for template in pod_templates(fleet):
        spec = template["spec"]
        assert spec["nodeSelector"]["sagemaker.amazonaws.com/compute-type"] == "hyperpod"
        affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (expression,) = affinity["nodeSelectorTerms"][0]["matchExpressions"]
        assert expression == {
            "key": "sagemaker.amazonaws.com/node-health-status",
            "operator": "In",
            "values": ["Schedulable"],
        }
        assert not any(t["key"].startswith("sagemaker") for t in spec["tolerations"])


def test_own_pods_are_locked_down(rendered: Renderer) -> None:
    for template in pod_templates(rendered):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            # Ray writes to /tmp, the engines to their home.
            assert {"/tmp", "/home/tierserve", "/dev/shm"} <= {m["mountPath"] for m in container["volumeMounts"]}


def test_only_the_autoscaler_may_ask_the_api(rendered: Renderer) -> None:
    head, *workers = pod_templates(rendered)
    growing = rendered.config.workers.max_count is not None
    assert head["spec"]["automountServiceAccountToken"] is growing
    assert all(worker["spec"]["automountServiceAccountToken"] is False for worker in workers)
    roles = [o for o in objects(rendered) if o["kind"] in ("Role", "ClusterRole")]
    assert bool(roles) is growing
    for role in roles:
        assert all("*" not in rule["verbs"] + rule["resources"] for rule in role["rules"])


def test_autoscaling_follows_the_configuration() -> None:
    spec = ray_service(renderer("catalogue"))["rayClusterConfig"]
    assert spec["enableInTreeAutoscaling"] is True
    assert (spec["workerGroupSpecs"][0]["minReplicas"], spec["workerGroupSpecs"][0]["maxReplicas"]) == (2, 3)
    # Version 2 of the autoscaler wants pods that are not restarted in place.
    assert {t["spec"].get("restartPolicy") for t in pod_templates(renderer("catalogue"))} == {"Never"}
    assert ray_service(renderer("g6e-fleet"))["rayClusterConfig"]["enableInTreeAutoscaling"] is False


def test_probes_need_no_program_in_the_image(rendered: Renderer) -> None:
    """KubeRay injects bash and wget where a template has no probe of its own."""
    for template in pod_templates(rendered):
        container = template["spec"]["containers"][0]
        assert set(container["livenessProbe"]) & {"httpGet", "exec"} == {"httpGet"}
        assert set(container["readinessProbe"]) & {"httpGet", "exec"} == {"httpGet"}


def test_no_secret_is_rendered(rendered: Renderer) -> None:
    assert not [o for o in objects(rendered) if o["kind"] == "Secret"]
    named = {each["name"]: [key["key"] for key in each["keys"]] for each in rendered.secrets()}
    assert named["tierserve-api-keys"] == ["TIERSERVE_API_KEY"]
    assert ray_service(rendered)["rayClusterConfig"]["authOptions"] == {
        "mode": "token",
        "secretName": "tierserve-ray-token",
    }


def test_network_policies_let_nobody_in_by_an_empty_list(rendered: Renderer) -> None:
    for policy in [o for o in objects(rendered) if o["kind"] == "NetworkPolicy"]:
        for rule in policy["spec"]["ingress"]:
            assert rule.get("from"), "an empty or missing `from` lets everybody in"


def test_ray_pods_reach_each_other_redis_dns_and_tls_and_no_more(rendered: Renderer) -> None:
    """Above all not the metadata service of the node, which answers on port 80."""
    (policy,) = [o for o in objects(rendered) if o["metadata"]["name"] == f"{rendered.config.name}-ray"]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    own, redis, *anywhere = policy["spec"]["egress"]
    assert own == {"to": [{"podSelector": policy["spec"]["podSelector"]}]}
    (server,) = [o for o in objects(rendered) if o["kind"] == "StatefulSet"]
    assert redis["to"][0]["podSelector"]["matchLabels"] == server["spec"]["template"]["metadata"]["labels"]
    assert {port["port"] for rule in anywhere for port in rule["ports"]} == {53, 443, 6443}


def test_clients_of_named_namespaces_may_call(fleet: Renderer) -> None:
    assert may_call(fleet, {"client_namespaces": ("web",)}, "web") == [8000]


def test_prometheus_of_named_namespaces_may_read_metrics_and_nothing_else(fleet: Renderer) -> None:
    assert may_call(fleet, {"metrics_namespaces": ("monitoring",)}, "monitoring") == [8080]
    assert may_call(fleet, {}, "monitoring") == []


def may_call(fleet: Renderer, changes: dict[str, Any], namespace: str) -> list[int]:
    """The ports of Ray's pods that pods in a namespace reach."""
    made = Renderer(fleet.config.model_copy(update=changes)).bundle("serving").objects
    (policy,) = [o for o in made if o["kind"] == "NetworkPolicy" and o["metadata"]["name"].endswith("-ray")]
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    return [port["port"] for rule in policy["spec"]["ingress"] if peer in rule["from"] for port in rule["ports"]]


def test_every_ray_pod_says_where_its_metrics_are(rendered: Renderer) -> None:
    (service,) = [o for o in objects(rendered) if o["kind"] == "RayService"]
    cluster = service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        template = group["template"]
        assert template["metadata"]["annotations"]["prometheus.io/port"] == "8080"
        (container, *_) = template["spec"]["containers"]
        assert {"name": "metrics", "containerPort": 8080} in container["ports"]


def test_every_image_is_pinned(rendered: Renderer) -> None:
    images = [value for o in objects(rendered) for value in found(o, "image") if isinstance(value, str)]
    assert images
    for image in images:
        assert ":" in image.rsplit("/", 1)[-1], image
        assert not image.endswith(":latest")


def test_charts_never_format_and_pin_their_images(fleet: Renderer) -> None:
    charts = {chart.name: chart for chart in fleet.bundle("curvine").charts}
    cluster = charts["curvine"].values["cluster"]
    assert [cluster[key] for key in ("formatMaster", "formatWorker", "formatJournal")] == [False, False, False]
    assert charts["curvine"].values["image"]["tag"] == "v0.4.1"
    assert charts["curvine-csi"].values["image"]["tag"] == "v0.4.1"
    assert charts["curvine"].values["worker"]["antiAffinity"] == {"enabled": True, "type": "required"}
    (disk,) = charts["curvine"].values["worker"]["storage"]["dataDirs"]
    assert (disk["storageClass"], disk["hostPath"]) == ("", "/opt/dlami/nvme/curvine")
    assert charts["curvine"].values["master"]["storage"]["meta"]["storageClass"] == "tierserve-gp3"


def test_curvine_clients_give_up_within_seconds(fleet: Renderer) -> None:
    (klass,) = [
        o for o in fleet.bundle("curvine").objects if o["metadata"]["name"] == "tierserve-l2" and "provisioner" in o
    ]
    parameters = klass["parameters"]
    assert all(isinstance(value, str) for value in parameters.values())
    for key in ("rpc-timeout-ms", "conn-timeout-ms", "data-timeout-ms", "rpc-retry-max-duration-ms"):
        assert int(parameters[f"client.{key}"]) <= 5000
    assert parameters["client.ttl-ms"] == str(24 * 3_600_000)
    assert "mnt-path" not in parameters  # the driver refuses it
    assert "entry-timeout" not in parameters  # of before 0.4.0, silently ignored


def test_helm_values_are_recorded(fleet: Renderer) -> None:
    (record,) = [o for o in fleet.bundle("curvine").objects if o["metadata"]["name"] == "tierserve-chart-curvine"]
    assert yaml.safe_load(record["data"]["values.yaml"])["cluster"]["formatMaster"] is False


class TestRefused:
    def test_more_gpus_than_there_are(self, fleet: Renderer) -> None:
        workers = fleet.config.workers.model_copy(update={"count": 1})
        with pytest.raises(ClusterError, match=r"need 2 GPUs, 1 x ml\.g6e\.4xlarge have 1"):
            Renderer(fleet.config.model_copy(update={"workers": workers}))

    def test_a_replica_wider_than_a_node(self, fleet: Renderer) -> None:
        file = ROOT / "serve_configs" / "tensor-parallel-32b.yaml"
        with pytest.raises(ClusterError, match=r"a replica needs 4 GPUs in one node, ml\.g6e\.4xlarge has 1"):
            Renderer(fleet.config.model_copy(update={"serve_file": file}))

    def test_more_l1_than_memory(self, fleet: Renderer) -> None:
        workers = fleet.config.workers.model_copy(update={"memory": "40Gi"})
        with pytest.raises(ClusterError, match=r"need 52 GiB on a node, a worker pod has 40: lower l1\.gib"):
            Renderer(fleet.config.model_copy(update={"workers": workers}))

    def test_a_pool_outside_the_mount(self, fleet: Renderer) -> None:
        storage = fleet.config.storage.model_copy(update={"mount_path": "/mnt/other"})
        with pytest.raises(ClusterError, match=r"would not be shared between the nodes"):
            Renderer(fleet.config.model_copy(update={"storage": storage}))

    def test_more_curvine_than_disk(self, fleet: Renderer) -> None:
        storage = fleet.config.storage.model_copy(update={"nvme_size": "900Gi"})
        with pytest.raises(
            ClusterError, match=r"900Gi is more than the 600 GB of local NVMe that ml\.g6e\.4xlarge has"
        ):
            Renderer(fleet.config.model_copy(update={"storage": storage}))

    def test_a_pool_larger_than_curvine(self, fleet: Renderer) -> None:
        storage = fleet.config.storage.model_copy(update={"nvme_size": "200Gi"})
        with pytest.raises(ClusterError, match=r"l2\.capacity_gib 600 is more than the 400 GiB"):
            Renderer(fleet.config.model_copy(update={"storage": storage}))

    def test_a_serve_file_that_does_not_load(self, fleet: Renderer, tmp_path: Path) -> None:
        broken = tmp_path / "broken.yaml"
        broken.write_text(fleet.serve.text.replace("replicas: 2", "replcias: 2", 1))
        with pytest.raises(ClusterError, match="did you mean replicas"):
            Renderer(fleet.config.model_copy(update={"serve_file": broken}))


class TestTemplate:
    def test_types_are_kept_and_text_is_text(self) -> None:
        values = {"a": {"n": 3, "list": [1]}, "s": "x: y\n- z"}
        assert fill({"n": "${a.n}", "t": "n=${a.n}", "l": "${a.list}", "s": "${s}"}, values) == {
            "n": 3,
            "t": "n=3",
            "l": [1],
            "s": "x: y\n- z",
        }

    def test_unknown_is_an_error(self) -> None:
        with pytest.raises(KeyError, match=r"no value for \$\{a\.b\}"):
            fill("${a.b}", {"a": {}})

    @given(st.text())
    def test_no_value_changes_the_structure(self, value: str) -> None:
        assert fill(yaml.safe_load("{a: {b: '${v}', c: 'x${v}'}}"), {"v": value}) == {
            "a": {"b": value, "c": "x" + value}
        }


class TestOverlay:
    def test_named_items_merge_and_others_replace(self) -> None:
        base = {"c": [{"name": "a", "x": 1}, {"name": "b"}], "l": [1, 2], "k": {"p": 1}}
        overlay = {"c": [{"name": "a", "y": 2}, {"name": "n"}], "l": [3], "k": {"q": 2}}
        assert merge(base, overlay) == {
            "c": [{"name": "a", "x": 1, "y": 2}, {"name": "b"}, {"name": "n"}],
            "l": [3],
            "k": {"p": 1, "q": 2},
        }
        assert base["l"] == [1, 2]


def found(node: Any, key: str) -> list[Any]:
    if isinstance(node, dict):
        here = [node[key]] if key in node else []
        return here + [value for child in node.values() for value in found(child, key)]
    return [value for child in node for value in found(child, key)] if isinstance(node, list) else []


def test_all_configurations_of_the_folder_load() -> None:
    for path in CONFIGS.glob("*.yaml"):
        assert load_config(path).serve_file.is_file()


def test_instance_facts_agree_with_their_source() -> None:
    import gzip
    import json

    moto = pytest.importorskip("moto")
    source = Path(moto.__file__).parent / "ec2" / "resources" / "instance_types.json.gz"
    if not source.is_file():
        pytest.skip("this moto keeps its instance types elsewhere")
    with gzip.open(source) as file:
        recorded = json.load(file)
    for name, facts in data("instances").items():
        real = recorded[name.removeprefix("ml.")]
        gpu = (real.get("GpuInfo") or {}).get("Gpus", [{}])[0]
        assert facts["vcpus"] == real["VCpuInfo"]["DefaultVCpus"], name
        assert facts["memory_gib"] * 1024 == real["MemoryInfo"]["SizeInMiB"], name
        assert facts["gpus"] == gpu.get("Count", 0), name
        assert facts["gpu_mib"] == gpu.get("MemoryInfo", {}).get("SizeInMiB", 0), name
        assert facts["nvme_gb"] == (real.get("InstanceStorageInfo") or {}).get("TotalSizeInGB", 0), name


def test_instance_types_are_hyperpods() -> None:
    import boto3

    model = boto3.client("sagemaker", region_name="us-east-1").meta.service_model
    assert set(data("instances")) <= set(model.shape_for("ClusterInstanceType").enum)


def test_budgets_are_numbers_of_pods_that_stay(rendered: Renderer) -> None:
    """RayCluster has no scale subresource: of its pods Kubernetes computes no `maxUnavailable` and no percentage."""
    budgets = {o["metadata"]["name"]: o["spec"] for o in objects(rendered) if o["kind"] == "PodDisruptionBudget"}
    assert all("maxUnavailable" not in spec for spec in budgets.values())
    assert budgets["tierserve-workers"]["minAvailable"] == rendered.config.workers.count - 1
    assert budgets["tierserve-head"]["minAvailable"] == 1


def test_a_fleet_that_may_grow_has_models_that_may(rendered: Renderer) -> None:
    """Otherwise nothing ever asks the autoscaler for a node."""
    workers = rendered.config.workers
    if workers.max_count is not None and workers.max_count > workers.count:
        assert any(model.autoscaling for model in rendered.serve.models)


def test_selectors_find_the_pods_they_mean(rendered: Renderer) -> None:
    """By labels that KubeRay does not set itself."""
    labels = [template["metadata"]["labels"] for template in pod_templates(rendered)]
    assert all("app.kubernetes.io/name" not in each for each in labels)
    for budget in [o for o in objects(rendered) if o["kind"] == "PodDisruptionBudget"]:
        wanted = budget["spec"]["selector"]["matchLabels"]
        assert [wanted.items() <= each.items() for each in labels].count(True) == 1
    (policy,) = [o for o in objects(rendered) if o["metadata"]["name"] == "tierserve-ray"]
    assert all(policy["spec"]["podSelector"]["matchLabels"].items() <= each.items() for each in labels)
