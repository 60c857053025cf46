"""Which models share a server, and what it is told of L2."""

from pathlib import Path
from typing import Any

import pytest

from app.settings import ModelSettings
from app.tiers.cache_spec import CacheEndpoint, CacheSpec, cache_spec


def spec(**model: Any) -> CacheSpec:
    made = cache_spec(ModelSettings.model_validate({"id": "m", **model}), usage_stats=False)
    assert made is not None
    return made


def test_models_that_want_the_same_share_a_server() -> None:
    assert spec().key("app") == spec(id="other", replicas=3).key("app")


@pytest.mark.parametrize(
    "other",
    [
        {"l1": {"gib": 2}},
        {"l1": {"chunk_tokens": 128}},
        {"l1": {"eviction_policy": "ARC"}},
        {"l1": {"workers": 3}},
        {"l2": {"path": "/elsewhere"}},
        {"l2": {"enabled": False}},
        {"accelerator": "gpu"},
    ],
)
def test_models_that_do_not_have_their_own(other: dict[str, Any]) -> None:
    assert spec().key("app") != spec(**other).key("app")


def test_applications_never_share_a_server() -> None:
    assert spec().key("one") != spec().key("two")
    assert len(spec().key("one")) == 12


def test_without_l1_there_is_no_server() -> None:
    model = ModelSettings.model_validate({"id": "m", "l1": {"enabled": False}, "l2": {"enabled": False}})
    assert cache_spec(model, usage_stats=False) is None


def test_l2_as_it_is_told_to_lmcache(tmp_path: Path) -> None:
    assert spec(l2={"enabled": False}).l2_adapter is None
    stock = spec(l2={"backend": "fs", "path": str(tmp_path)}).l2_adapter
    assert stock is not None
    assert stock["base_path"] == str(tmp_path)
    custom = {"type": "s3", "bucket": "b"}
    assert spec(l2={"backend": "custom", "adapter": custom}).l2_adapter == custom


def test_the_pool_lies_under_home_unless_told(tmp_path: Path) -> None:
    adapter = spec(l2={"backend": "fs"}).l2_adapter
    assert adapter is not None
    assert adapter["base_path"] == str(tmp_path / "home" / "l2")


def test_where_an_endpoint_answers() -> None:
    at = CacheEndpoint("127.0.0.1", 1, 2, 3, "name")
    assert (at.http_url, at.events_url) == ("http://127.0.0.1:2", "tcp://127.0.0.1:3")
