"""Every serve file: loads, and asks vLLM only for what the installed one has."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from app.local.machine import Machine, check_resources
from app.settings import load_settings

FILES = sorted((Path(__file__).parents[1] / "serve_configs").glob("*.yaml"))
assert len(FILES) >= 6, FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_loads_as_settings(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    assert document["applications"]
    for application in document["applications"]:
        assert application["import_path"] == "app.main:build"
        assert load_settings(application["args"]).models


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_names_and_routes_are_unique(path: Path) -> None:
    applications = yaml.safe_load(path.read_text())["applications"]
    for key in ("name", "route_prefix"):
        values = [application[key] for application in applications]
        assert len(set(values)) == len(values)


@pytest.fixture(scope="module")
def vllm_arguments() -> set[str]:
    arg_utils = pytest.importorskip("vllm.engine.arg_utils")
    cli_args = pytest.importorskip("vllm.entrypoints.launchers.cli_args")
    return {
        field.name for cls in (arg_utils.AsyncEngineArgs, cli_args.FrontendArgs) for field in dataclasses.fields(cls)
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_engine_arguments_exist_in_vllm(path: Path, vllm_arguments: set[str]) -> None:
    for application in yaml.safe_load(path.read_text())["applications"]:
        for model in application["args"]["models"]:
            assert set(model.get("engine", {})) <= vllm_arguments, model["id"]


@pytest.mark.parametrize(
    "path", [f for f in FILES if f.stem not in ("local", "one-gpu-node", "adapters")], ids=lambda path: path.stem
)
def test_cluster_files_put_a_proxy_on_every_node_and_need_a_key(path: Path) -> None:
    """A worker pod without a proxy never becomes ready, and an open endpoint is not for a cluster."""
    document = yaml.safe_load(path.read_text())
    assert document["proxy_location"] == "EveryNode"
    assert document["http_options"]["host"] == "0.0.0.0"
    for application in document["applications"]:
        assert application["args"]["auth"]["api_keys"]


@pytest.mark.parametrize("name", ["local", "kind-cpu"])
def test_files_for_cpu_fit_a_machine_of_two(name: str) -> None:
    (path,) = [each for each in FILES if each.stem == name]
    applications = [each["args"] for each in yaml.safe_load(path.read_text())["applications"]]
    check_resources(map(load_settings, applications), replace(Machine.read(), cpus=2))
