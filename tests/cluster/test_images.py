"""The Dockerfiles, as far as reading them goes: pinned bases, the user that the pods run as, files that exist."""

import re
import tomllib
from pathlib import Path

import pytest

from cluster.render.values import UID

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "cluster" / "images").glob("Dockerfile.*"))
assert len(FILES) == 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_dockerfile(path: Path) -> None:
    text = path.read_text()
    (base,) = re.findall(r"^ARG PYTHON=(\S+)", text, re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/python:3\.11\.\d+-slim-bookworm", base)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${PYTHON}"}
    assert f"USER {UID}:{UID}" in text
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source


def test_the_cpu_image_finds_pytorch_where_the_makefile_does() -> None:
    """The lock names a `+cpu` build, which is not on PyPI."""
    assert re.search(r"^torch==\S+\+cpu$", (ROOT / "requirements" / "cpu.txt").read_text(), re.MULTILINE)
    (index,) = re.findall(r"^TORCH_CPU_INDEX := (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"ARG PIP_EXTRA_INDEX_URL={index}\n" in (ROOT / "cluster" / "images" / "Dockerfile.cpu").read_text()


def test_extras_of_the_gpu_image_exist() -> None:
    extras = re.findall(r"/src\[([\w,]+)\]", (ROOT / "cluster" / "images" / "Dockerfile.gpu").read_text())
    assert extras == ["gpu,cluster"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"gpu", "cluster"} <= set(project["optional-dependencies"])
    assert project["optional-dependencies"]["gpu"] == [project["optional-dependencies"]["cpu"][0].replace("-cpu", "")]
