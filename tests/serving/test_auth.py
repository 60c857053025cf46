"""Keys let their tenants in and nobody else; tenants never share a salt."""

import hashlib
from typing import Any

import pytest
from fastapi import FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from starlette.testclient import TestClient

from app.errors import SettingsError
from app.serving.auth import ApiKeyMiddleware, key_digests, storable_salt, tenant_salt
from app.settings_auth import AuthSettings

AUTH = AuthSettings.model_validate(
    {"api_keys": [{"tenant": "one", "key": "key-of-one"}, {"tenant": "two", "key_env": "KEY_TWO"}]}
)


def client(auth: AuthSettings, root_path: str = "") -> TestClient:
    app = FastAPI()
    app.add_middleware(ApiKeyMiddleware, auth=auth)

    @app.get("/v1/models")
    def models(request: Request) -> Any:
        return {"tenant": getattr(request.state, "tenant", None)}

    @app.get("/health")
    def health() -> Any:
        return {"status": "ok"}

    return TestClient(app, root_path=root_path)


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setenv("KEY_TWO", "key-of-two")
    # The default of `environment` is os.environ itself, so what is set now is read when the middleware is made.
    return client(AUTH)


@pytest.mark.parametrize(("key", "tenant"), [("key-of-one", "one"), ("key-of-two", "two")])
def test_a_key_names_its_tenant(guarded: TestClient, key: str, tenant: str) -> None:
    assert guarded.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).json() == {"tenant": tenant}
    assert guarded.get("/v1/models", headers={"authorization": f"bearer  {key} "}).json() == {"tenant": tenant}


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "key-of-one",
        "Basic key-of-one",
        "Bearer key-of-on",
        "Bearer KEY_TWO",
    ],
)
def test_anybody_else_gets_one_and_the_same_401(guarded: TestClient, header: str | None) -> None:
    response = guarded.get("/v1/models", headers={} if header is None else {"Authorization": header})
    assert response.status_code == 401
    assert response.json() == {
        "error": {
            "message": "Give a valid API key in the header: `Authorization: Bearer KEY`.",
            "type": "authentication_error",
            "param": None,
            "code": "invalid_api_key",
        }
    }


def test_a_path_that_does_not_exist_is_not_told_apart_without_a_key(guarded: TestClient) -> None:
    assert guarded.get("/nowhere").status_code == 401


def test_health_is_open(guarded: TestClient) -> None:
    assert guarded.get("/health").json() == {"status": "ok"}
    assert guarded.get("/healthz").status_code == 401


def test_health_is_open_under_a_route_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_TWO", "key-of-two")
    under = client(AUTH, root_path="/llm")
    assert under.get("/llm/health").status_code == 200
    assert under.get("/llm/v1/models").status_code == 401


def test_without_keys_everybody_is_served_without_a_tenant() -> None:
    assert client(AuthSettings()).get("/v1/models").json() == {"tenant": None}


def test_keys_are_kept_as_digests_only() -> None:
    digests = key_digests(AUTH, {"KEY_TWO": "key-of-two"})
    assert digests == {hashlib.sha256(b"key-of-one").digest(): "one", hashlib.sha256(b"key-of-two").digest(): "two"}


@pytest.mark.parametrize("environment", [{}, {"KEY_TWO": ""}])
def test_a_variable_that_is_not_set_is_named_with_its_tenant(environment: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=r"set KEY_TWO in the ingress's environment \(tenant two\)"):
        key_digests(AUTH, environment)


def test_two_tenants_cannot_have_one_key() -> None:
    with pytest.raises(SettingsError, match="have the same key") as caught:
        key_digests(AUTH, {"KEY_TWO": "key-of-one"})
    assert "key-of-one" not in str(caught.value)


def test_one_tenant_may_have_several_keys() -> None:
    auth = AuthSettings.model_validate({"api_keys": [{"tenant": "one", "key": f"key-{n}-of-one"} for n in (1, 2)]})
    assert set(key_digests(auth, {}).values()) == {"one"}


tenants = st.none() | st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
salts = st.none() | st.text(min_size=1, max_size=200)


@given(tenants, salts)
def test_every_salt_is_one_that_lmcache_stores(tenant: str | None, salt: str | None) -> None:
    made = tenant_salt(tenant, salt)
    if made is not None:
        key(made)


@pytest.mark.parametrize("salt", ["a/b", "a@b", "a\\b", "a\0b", "x" * 129])
def test_lmcache_refuses_what_we_keep_from_it(salt: str) -> None:
    """Such a refusal is raised in the engine's scheduler, where nothing catches it."""
    with pytest.raises(ValueError, match="cache_salt"):
        key(salt)
    key(storable_salt(salt) or "")


def key(salt: str) -> IPCCacheServerKey:
    return IPCCacheServerKey("model", 1, None, (1,), 0, 1, "request", cache_salt=salt)


@given(tenants, salts, tenants, salts)
def test_tenants_never_share_a_salt(one: str | None, salt: str | None, two: str | None, other: str | None) -> None:
    assert tenant_salt(one, salt) == tenant_salt(one, salt)
    if one is not None and two is not None and (one, salt) != (two, other):
        assert tenant_salt(one, salt) != tenant_salt(two, other)


def test_an_ordinary_salt_of_a_client_stands_as_it_is() -> None:
    assert tenant_salt(None, "0123abcdEF_-.") == "0123abcdEF_-."
    assert tenant_salt(None, None) is None
