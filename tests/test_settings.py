"""A wrong setting is named by its path, in the file's own terms, with the nearest valid name, and alone."""

import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from app.errors import SettingsError
from app.settings import ModelSettings, Settings, home, load_settings

FULL: dict[str, Any] = {
    "models": [
        {
            "id": "small",
            "l0": {"gib": 1},
            "l1": {"gib": 1},
            "l2": {"enabled": False},
            "routing": {"strategy": "session"},
            "autoscaling": {"max_replicas": 3},
        },
        {"id": "org/large", "replicas": 2},
    ],
    "auth": {"api_keys": [{"tenant": "one", "key": "12345678"}]},
    "ingress": {"replicas": 1},
}
# Where in FULL a section stands: (steps to it, how its path is written).
SECTIONS: list[tuple[tuple[str | int, ...], str]] = [
    ((), ""),
    (("models", 0), "models[0]"),
    (("models", 1), "models[1]"),
    (("models", 0, "l0"), "models[0].l0"),
    (("models", 0, "l1"), "models[0].l1"),
    (("models", 0, "l2"), "models[0].l2"),
    (("models", 0, "routing"), "models[0].routing"),
    (("models", 0, "autoscaling"), "models[0].autoscaling"),
    (("auth",), "auth"),
    (("auth", "api_keys", 0), "auth.api_keys[0]"),
    (("ingress",), "ingress"),
]


def with_key(steps: tuple[str | int, ...], key: Any, value: Any) -> dict[str, Any]:
    args = copy.deepcopy(FULL)
    section: Any = args
    for step in steps:
        section = section[step]
    section[key] = value
    return args


def refused(args: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(args)
    message = str(caught.value)
    for word in ("validation error", "pydantic", "input_value", "instance of", "Tuple", "Value error", "Settings"):
        assert word not in message, f"{word} is not for a person: {message}"
    return message


def test_the_full_tree_loads() -> None:
    settings = load_settings(FULL)
    assert [model.id for model in settings.models] == ["small", "org/large"]
    assert settings.usage_stats is False


@given(st.sampled_from(SECTIONS), st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12))
def test_an_unknown_key_is_named_by_its_path_at_any_depth(section: tuple[tuple[str | int, ...], str], key: str) -> None:
    steps, path = section
    known: Any = load_settings(FULL)
    for step in steps:
        known = known[step] if isinstance(step, int) else getattr(known, step)
    if key in type(known).model_fields:
        return
    message = refused(with_key(steps, key, 1))
    assert message.startswith(f"{path}.{key}: unknown key; ".removeprefix("."))
    assert "\n" not in message, "one mistake, one line"


@pytest.mark.parametrize(
    ("steps", "key", "nearest"),
    [
        ((), "model", "models"),
        (("models", 0), "max_ongoing_request", "max_ongoing_requests"),
        (("models", 0, "l0"), "gibs", "gib"),
        (("models", 0, "l1"), "chunk_token", "chunk_tokens"),
        (("models", 0, "l2"), "capacity_gb", "capacity_gib"),
        (("models", 0, "routing"), "strategie", "strategy"),
        (("models", 0, "autoscaling"), "max_replica", "max_replicas"),
        (("auth", "api_keys", 0), "tenants", "tenant"),
        (("ingress",), "request_timeout", "request_timeout_s"),
    ],
)
def test_the_nearest_valid_key_is_suggested(steps: tuple[str | int, ...], key: str, nearest: str) -> None:
    assert refused(with_key(steps, key, 1)).endswith(f"{key}: unknown key; did you mean {nearest}?")


def test_without_a_near_key_the_valid_ones_are_listed() -> None:
    assert "valid here: backlog" not in refused(with_key(("ingress",), "zzz", 1))
    assert refused(with_key(("ingress",), "zzz", 1)).endswith(
        "valid here: max_ongoing_requests, num_cpus, replicas, request_timeout_s"
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_nothing_but_settings_errors_leaves_whatever_stands_in_the_file(document: Any) -> None:
    for args in (document, {"models": document}, {"models": [document]}, with_key(("models", 0), "l1", document)):
        with suppress(SettingsError):
            load_settings(args)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "args: must be a mapping that begins with `models:`, not a list"),
        (None, "args: must be a mapping that begins with `models:`, not empty"),
        ({}, "models: is required"),
        ({"models": []}, "models: must have at least one item"),
        ({"models": {"id": "a"}}, "models: must be a list"),
        ({"models": ["a"]}, "models[0]: must be a mapping of keys to values"),
        ({"models": [{"id": "a", "l1": None}]}, "models[0].l1: must be a mapping of keys to values"),
        ({"models": [{"id": "a", "l0": {"gib": float("inf")}}]}, "models[0].l0.gib: must be a finite number, not inf"),
        (
            {"models": [{"id": "a", "replicas": True}]},
            "models[0].replicas: must be a number, not true (which YAML makes",
        ),
        (
            {"models": [{"id": "a", "l2": {"capacity_gib": False}}]},
            "models[0].l2.capacity_gib: must be a number, not fal",
        ),
        (
            {"models": [{"id": "a", "l0": {"gib": 1e300}}]},
            "models[0].l0.gib: must be less than or equal to 1000000000,",
        ),
        ({"models": [{"id": "a", "replicas": "two"}]}, "models[0].replicas: must be a whole number, not 'two'"),
        ({"models": [{"id": False}]}, "models[0].id: must be a text, not false: put it in quotes"),
        ({"models": [{"id": "a", "env": {"A": 1}}]}, "models[0].env.A: must be a text, not 1: put it in quotes"),
        ({"models": [{"id": "a", "env": {1: "a"}}]}, "models[0].env[1]: keys must be texts: put it in quotes"),
        ({"models": [{"id": "a", "env": {"A=B": "x"}}]}, "models[0].env: 'A=B' is no name of a variable"),
        ({"models": [{"id": "a", "source": ""}]}, "models[0].source: is empty: give a value, or leave the key out"),
        (
            {"models": [{"id": "a", "accelerator": "cuda"}]},
            "models[0].accelerator: must be cpu, gpu or Ray's name of a",
        ),
        (
            {"models": [{"id": "a", "l2": {"path": "pool"}}]},
            "models[0].l2.path: give an absolute directory, not 'pool'",
        ),
        ({"models": [{"id": "a", "lora": {"path": "s3://"}}]}, "models[0].lora.path: name a bucket behind s3://"),
        (
            {"models": [{"id": "a", "l2": {"enabled": "maybe"}}]},
            "models[0].l2.enabled: must be true or false, not 'mayb",
        ),
        ({"models": [{"id": "a b"}]}, "models[0].id: letters, digits and . _ / - only"),
        ({"models": [{"id": "a"}, {"id": "a"}]}, "two models have the same id: a"),
        ({"models": [{"id": "a.b"}, {"id": "a_b"}]}, "model ids must differ in more than . and _"),
        ({"models": [{"id": "a", "replicas": 1, "autoscaling": {}}]}, "models[0]: give `replicas` or `autoscaling`"),
        (
            {"models": [{"id": "a", "autoscaling": {"min_replicas": 3}}]},
            "models[0].autoscaling: min_replicas 3",
        ),
        ({"models": [{"id": "a", "l1": {"enabled": False}}]}, "models[0]: l2 needs l1"),
        ({"models": [{"id": "a", "l1": {"chunk_tokens": 50}}]}, "models[0]: l1.chunk_tokens 50 must be a multiple of"),
        ({"models": [{"id": "a", "engine": {"dtype": "auto"}}]}, "models[0]: engine: dtype is set by tierserve"),
        ({"models": [{"id": "a", "l2": {"backend": "custom"}}]}, "models[0].l2: backend custom needs `adapter:"),
        ({"models": [{"id": "a", "l2": {"adapter": {"type": "s3"}}}]}, "models[0].l2: `adapter` is only read with"),
        (
            {"models": [{"id": "a", "lora": {"path": "adapters"}}]},
            "models[0].lora.path: give an absolute directory or one",
        ),
        (
            {"models": [{"id": "a", "engine": {"enable_lora": True}}]},
            "models[0]: engine: enable_lora is set by tierserve",
        ),
        (with_key(("auth", "api_keys", 0), "key_env", "KEY"), "auth.api_keys[0]: give exactly one of"),
        (with_key(("auth", "api_keys", 0), "tenant", "a/b"), "auth.api_keys[0].tenant: letters, digits"),
    ],
)
def test_a_wrong_value_is_one_line_that_begins_with_its_path(args: Any, message: str) -> None:
    said = refused(args)
    assert said.startswith(message)
    assert "\n" not in said


def test_each_of_several_mistakes_has_its_line() -> None:
    args = {"models": [{"id": "a", "replica": 1, "l1": {"workers": 0}}], "ingres": {}}
    assert sorted(line.split(":")[0] for line in refused(args).splitlines()) == [
        "ingres",
        "models[0].l1.workers",
        "models[0].replica",
    ]


def test_blocks_of_a_cpu_engine_hold_32_tokens_unless_told() -> None:
    assert ModelSettings(id="a").block_tokens == 32
    assert ModelSettings(id="a", accelerator="gpu").block_tokens is None


def test_every_section_refuses_unknown_keys() -> None:
    """A section that did not would swallow typing errors."""

    def sections(of: type[BaseModel]) -> set[type[BaseModel]]:
        from app.settings_text import section_in

        inner = {found for field in of.model_fields.values() if (found := section_in(field.annotation))}
        return {of}.union(*map(sections, inner))

    found = sections(Settings)
    assert len(found) == 11
    assert all(section.model_config.get("extra") == "forbid" for section in found)


@pytest.mark.parametrize("key", ["short", "with a space", "schlüssel-schlüssel", 1234567890])
def test_a_key_that_is_refused_is_not_shown(key: object) -> None:
    message = refused({"models": [{"id": "a"}], "auth": {"api_keys": [{"tenant": "t", "key": key}]}})
    assert message.startswith("auth.api_keys[0].key: ")
    assert str(key) not in message


def test_tenants_do_not_share_a_key() -> None:
    keys = [{"tenant": name, "key": "12345678"} for name in ("one", "two")]
    message = refused({"models": [{"id": "a"}], "auth": {"api_keys": keys}})
    assert message == "auth: api_keys: one and two have the same key: give each its own"


def test_the_root_may_hold_adapters() -> None:
    (model,) = load_settings({"models": [{"id": "a", "lora": {"path": "/"}}]}).models
    assert model.lora is not None
    assert str(model.lora.directory) == "/"


def test_a_relative_home_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERSERVE_HOME", "cache")
    with pytest.raises(SettingsError, match="TIERSERVE_HOME must be an absolute directory, not 'cache'"):
        home()
