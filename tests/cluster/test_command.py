"""The command line."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from app.commands.cluster import command
from app.errors import ClusterError
from cluster.files import CONFIGS


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_render_needs_nothing_and_prints_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials, no kubeconfig, no network, no helm."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "KUBECONFIG", "PATH"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("render uses the network"))
    documents = list(yaml.safe_load_all(invoke("render")))
    assert {"Namespace", "StorageClass", "PersistentVolumeClaim", "RayService", "Job"} <= {d["kind"] for d in documents}
    assert all(d["apiVersion"] and d["metadata"]["name"] for d in documents)


def test_render_of_one_stage() -> None:
    kinds = {d["kind"] for d in yaml.safe_load_all(invoke("render", "--stage", "operators"))}
    assert kinds == {"Namespace", "ConfigMap"}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_render_of_every_configuration(path: Path) -> None:
    assert list(yaml.safe_load_all(invoke("render", "--config", str(path))))


def test_bad_input_is_refused_first(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: X\n")
    with pytest.raises(ClusterError, match=r"bad.yaml, line 1: name"):
        invoke("apply", "--config", str(bad))
    with pytest.raises(ClusterError, match="there is no stage nothing"):
        invoke("render", "--stage", "nothing")


def test_destroy_asks() -> None:
    result = CliRunner().invoke(command, ["destroy", "--stage", "serving"], input="n\n")
    assert "Destroy serving of tierserve, with everything that is cached?" in result.output
    assert result.exit_code == 1


def test_help_names_every_command() -> None:
    for name in ("plan", "render", "apply", "status", "verify", "bench", "destroy", "cost"):
        assert name in invoke("--help")
