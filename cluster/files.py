"""The data files beside the code: versions, instance types, manifests. Read once, checked by shape."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent
CONFIGS = ROOT / "configs"
MANIFESTS = ROOT / "manifests"
CHARTS = ROOT / "charts"


@cache
def data(name: str) -> dict[str, Any]:
    """The mapping in `cluster/NAME.yaml`. Callers must not change it."""
    loaded = yaml.safe_load((ROOT / f"{name}.yaml").read_text())
    assert isinstance(loaded, dict), name
    return loaded


def version_of(chart: str) -> str:
    return str(data("versions")["charts"][chart]["version"])


def image_of(name: str) -> str:
    return str(data("versions")["images"][name])
