"""Validation against custom resource definitions: the openAPI schema of a CRD as strict JSON schema.

The definitions of KubeRay and of the Inference Operator are too large to keep here; they are read from the folder that
TIERSERVE_CRDS names, else from one beside the checkout, and tests that need them skip without.
"""

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]


def folder() -> Path | None:
    candidates = [Path(os.environ["TIERSERVE_CRDS"])] if "TIERSERVE_CRDS" in os.environ else []
    candidates += [ROOT.parent / "shared" / "crds", ROOT.parent.parent / "shared" / "crds"]
    return next((path for path in candidates if path.is_dir()), None)


def definition(file: str) -> dict[str, Any]:
    """The CustomResourceDefinition in `file`, without helm's placeholders. Skips the test when there is no folder."""
    found = folder()
    if found is None or not (found / file).is_file():
        pytest.skip(f"{file} is not here: set TIERSERVE_CRDS to a folder with the CRDs of KubeRay and the operator")
    return _parsed(found / file)


@cache
def _parsed(path: Path) -> dict[str, Any]:
    text = re.sub(r"\{\{.*?\}\}", "placeholder", path.read_text())
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    (document,) = [d for d in yaml.load_all(text, Loader=loader) if d]
    assert isinstance(document, dict), path
    return document


def validate(manifest: dict[str, Any], file: str, version: str = "v1") -> None:
    """Raises jsonschema.ValidationError; unknown fields are errors, as with a strict API server."""
    definition(file)  # skips without a folder
    error = jsonschema.exceptions.best_match(_validator(file, version).iter_errors(manifest))
    if error is not None:
        raise error


@cache
def _validator(file: str, version: str) -> jsonschema.Draft202012Validator:
    versions = definition(file)["spec"]["versions"]
    (schema,) = [entry["schema"]["openAPIV3Schema"] for entry in versions if entry["name"] == version]
    return jsonschema.Draft202012Validator(_strict(schema))


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    strict = {key: _strict(value) for key, value in node.items()}
    closed = node.get("type") == "object" and "properties" in node and "additionalProperties" not in node
    if closed and not node.get("x-kubernetes-preserve-unknown-fields") and node["properties"].keys() != {"metadata"}:
        strict["additionalProperties"] = False
    if isinstance(node.get("properties"), dict) and "metadata" in node["properties"]:
        # Object metadata is checked by the server itself, not by the CRD.
        strict["properties"]["metadata"] = {"type": "object"}
    return strict
