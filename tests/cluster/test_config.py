"""Bad input is refused with the key and what would be right, before anything is touched."""

from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ClusterError
from cluster.config import load_config, parse_config
from cluster.limits import check_label, check_quantity, quantity

GOOD: dict[str, Any] = {
    "image": "registry.example/tierserve:1",
    "serve_file": "x.yaml",
    "aws": {"region": "us-east-1", "hyperpod_cluster": "a", "eks_cluster": "b"},
    "workers": {"instance_type": "ml.g6e.4xlarge", "count": 2},
}

ENDPOINT = {"model_name": "q", "model_id": "Qwen/Q", "image": "r.example/v:1", "instance_type": "ml.g6e.4xlarge"}


def with_(**changes: Any) -> dict[str, Any]:
    return {**GOOD, **changes}


def test_good() -> None:
    assert parse_config(GOOD).workers.count == 2


def test_a_number_is_a_quantity() -> None:
    """YAML reads `cpu: 2` as one."""
    assert parse_config(with_(head={"cpu": 2, "memory": "8Gi"})).head.cpu == "2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a" * 47}, "name: name of the RayService has 47 characters, at most 46"),
        ({"name": "9lives"}, "name: .*starting with a letter"),
        ({"name": "Tier_Serve"}, "name: .*lower-case"),
        ({"namespace": "-x"}, "namespace: "),
        ({"kubernetes": "1.3.0"}, "kubernetes: .*in quotes"),
        ({"image": "tierserve"}, "image: .*REPOSITORY:TAG"),
        ({"image": "registry.example/tierserve:latest"}, "image: .*not latest"),
        ({"workers": {"instance_type": "ml.g6e.4xlrage", "count": 1}}, "did you mean ml.g6e.4xlarge"),
        ({"workers": {"count": 1}}, "workers: give instance_type, or cpu and memory"),
        ({"workers": {"count": 3, "max_count": 2, "instance_type": "ml.g6e.4xlarge"}}, "max_count 2 is below count 3"),
        ({"workers": {"count": 0, "instance_type": "ml.g6e.4xlarge"}}, "workers.count"),
        ({"head": {"memory": "8GB"}}, "head.memory: '8GB' is not a Kubernetes quantity"),
        ({"storage": {"claim": "-1Gi"}}, "storage.claim"),
        ({"storage": {"claim": "0"}}, "storage.claim: '0' must be more than zero"),
        ({"storage": {"masters": 2}}, "storage.masters: masters must be odd"),
        ({"storage": {"mount_path": "mnt"}}, "storage.mount_path: .*absolute path"),
        ({"storage": {"mountpath": "/mnt"}}, "storage.mountpath: unknown key; did you mean mount_path"),
        ({"storage": {"zzz": 1}}, "storage.zzz: unknown key; valid here: backend, claim"),
        ({"wrokers": {}}, "wrokers: unknown key; did you mean workers"),
        ({"tiered_storage": {"percent": 20}}, "tiered_storage.percent: unknown key; did you mean memory_percent"),
        ({"storage": {"master_storage_class": "Fast_Disk"}}, "storage.master_storage_class: .*lower-case"),
        ({"namespace": "kube-system"}, "namespace: kube-system belongs to others"),
        ({"namespace": "curvine"}, "namespace: curvine belongs to others"),
        ({"client_namespaces": ["Web"]}, "client_namespaces: namespace Web must be lower-case"),
        ({"kubernetes": 1.33}, "kubernetes: 1.33 is not major.minor in quotes"),
        ({"kubernetes": "1.20"}, "kubernetes: 1.20 is too old"),
        ({"endpoint": {**ENDPOINT, "model_name": "Qwen/Qwen2"}}, "endpoint.model_name: .*lower-case"),
        ({"endpoint": {**ENDPOINT, "image": "vllm"}}, "endpoint.image: .*REPOSITORY:TAG"),
        ({"endpoint": {**ENDPOINT, "instance_type": "ml.g6e.4xl"}}, "endpoint.instance_type: .*did you mean"),
        ({"endpoint": {**ENDPOINT, "instance_type": "ml.m5.4xlarge"}}, "endpoint: .*has no GPU"),
        ({"aws": {**GOOD["aws"], "region": "us-esat-1"}}, "aws.region: us-esat-1 is not .*; did you mean .*us-east-1"),
        ({"aws": {**GOOD["aws"], "eks_cluster": "my eks"}}, "aws.eks_cluster: letters, digits"),
        ({"aws": {**GOOD["aws"], "hyperpod_cluster": "my_cluster"}}, "aws.hyperpod_cluster"),
        ({"aws": {**GOOD["aws"], "addons": ["metric-server"]}}, "aws.addons: metric-server not in versions.yaml"),
        ({"aws": None}, "give `aws`, or `kube_context`"),
        ({"aws": None, "kube_context": "kind"}, "storage.backend curvine keeps its metadata on EBS"),
        ({"tiered_storage": {"memory_percent": 10}}, "tiered_storage.memory_percent"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        parse_config(with_(**changes))


def test_every_problem_has_its_line() -> None:
    with pytest.raises(ClusterError) as caught:
        parse_config(with_(name="X", namespace="Y"), lambda _: "my.yaml")
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["my.yaml", "my.yaml"]


def test_files(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="cannot be read"):
        load_config(tmp_path / "absent.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ClusterError, match="not valid YAML"):
        load_config(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- a")
    with pytest.raises(ClusterError, match="must be a mapping"):
        load_config(tmp_path / "list.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", "0.5"),
        ("2", "2"),
        ("16Gi", "17179869184"),
        ("1.5Ki", "1536"),
        ("1e3", "1000"),
        ("3k", "3000"),
        (".5", "0.5"),
    ],
)
def test_quantities(text: str, value: str) -> None:
    assert quantity(text) == Decimal(value)


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        assert quantity(check_quantity(text)) > 0


@given(st.text(alphabet="abcz019-_.A", max_size=70))
def test_labels_are_what_kubernetes_takes(text: str) -> None:
    try:
        check_label(text, 63, "it")
    except ValueError:
        return
    assert 0 < len(text) <= 63
    assert text == text.lower()
    assert text[0] != "-" != text[-1]
    assert not set(text) & set("_.A")
