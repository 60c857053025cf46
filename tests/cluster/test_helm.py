"""helm as a program: its command line, and what is said when it is not there or fails."""

import subprocess
from collections.abc import Sequence

import pytest

from app.errors import ClusterError
from cluster.helm import Helm, Output
from cluster.render.bundle import Renderer


def test_command_and_namespaces(fleet: Renderer) -> None:
    seen: list[Sequence[str]] = []
    printed = "kind: ConfigMap\nmetadata: {name: a}\n---\nkind: ClusterRole\nmetadata: {name: b}\n---\n"

    def run(command: Sequence[str], stdin: str) -> Output:
        seen.append(command)
        assert "formatMaster: false" in stdin
        return Output(0, printed, "")

    first, second = Helm(run).render(fleet.bundle("curvine").charts[0], "1.33")
    assert first["metadata"] == {"name": "a", "namespace": "curvine"}
    assert second["metadata"] == {"name": "b"}
    command = " ".join(seen[0])
    assert command.startswith("helm template curvine curvine --repo https://curvineio.github.io/helm-charts")
    assert "--version 0.4.1 --namespace curvine --kube-version 1.33 --include-crds --no-hooks" in command


def test_not_installed(fleet: Renderer) -> None:
    def run(command: Sequence[str], stdin: str) -> Output:
        raise FileNotFoundError(command[0])

    with pytest.raises(ClusterError, match=r"needs helm .*not on PATH"):
        Helm(run).render(fleet.bundle("operators").charts[0], "1.33")


def test_fails_or_hangs(fleet: Renderer) -> None:
    chart = fleet.bundle("operators").charts[0]
    with pytest.raises(ClusterError, match=r"helm cannot render kuberay-operator 1.7.0: no such host"):
        Helm(lambda command, stdin: Output(1, "", "no such host")).render(chart, "1.33")

    def hang(command: Sequence[str], stdin: str) -> Output:
        raise subprocess.TimeoutExpired(list(command), 300)

    with pytest.raises(ClusterError, match="reachable from here"):
        Helm(hang).render(chart, "1.33")
