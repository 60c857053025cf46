"""The Dockerfiles, as far as reading them goes: pinned bases, the user that the pods run as, files that exist."""

import re
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
