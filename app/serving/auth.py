"""API keys, and the tenants behind them. Tenants never share cached KV: each has a salt that is part of every key.

Pure ASGI; the keys are read once, when the application starts in its own process, so `key_env` names a variable there.
"""

import hashlib
import hmac
import os
import re
from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import SettingsError
from app.serving.http_errors import error_response
from app.settings_auth import ApiKeySettings, AuthSettings

# Paths that a load balancer asks without a key.
_OPEN = {"/health"}
_STORABLE = re.compile(r"[A-Za-z0-9._-]{1,128}")


def key_digests(auth: AuthSettings, environment: Mapping[str, str] = os.environ) -> dict[bytes, str]:
    """SHA-256 of each key -> its tenant.

    Raises:
        SettingsError: a variable that `key_env` names is not set, or two tenants have the same key.
    """
    tenants: dict[bytes, str] = {}
    for entry in auth.api_keys:
        digest = hashlib.sha256(_key(entry, environment).encode()).digest()
        if tenants.setdefault(digest, entry.tenant) != entry.tenant:
            raise SettingsError(f"auth.api_keys: {entry.tenant} and {tenants[digest]} have the same key")
    return tenants


def _key(entry: ApiKeySettings, environment: Mapping[str, str]) -> str:
    key = entry.key or environment.get(entry.key_env or "")
    if not key:
        raise SettingsError(f"auth.api_keys: set {entry.key_env} in the ingress's environment (tenant {entry.tenant})")
    return key


def tenant_salt(tenant: str | None, client_salt: str | None) -> str | None:
    """The cache salt of a request: the tenant's own space, and inside it the client's `cache_salt` if it gave one.

    Without a tenant the client's salt stands as it is, as far as LMCache can store it (`storable_salt`).
    """
    if tenant is None:
        return storable_salt(client_salt)
    return _digest(f"{tenant}\0{client_salt or ''}")


def storable_salt(salt: str | None) -> str | None:
    """`salt`, or its digest if it holds what LMCache refuses: there such a salt (any base64 with a slash, say) is an
    exception in the engine's scheduler, which ends the engine."""
    return salt if salt is None or _STORABLE.fullmatch(salt) else _digest(salt)


def _digest(text: str) -> str:
    data = text.encode(errors="surrogatepass")
    return hashlib.blake2b(data, digest_size=16, person=b"tierserve-salt").hexdigest()


def _path(scope: Scope) -> str:
    """The path without the application's route prefix, which ASGI leaves in front of it."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "").rstrip("/"))


class ApiKeyMiddleware:
    """Lets a request through with its tenant in `scope["state"]["tenant"]`, or answers 401. No keys: all pass."""

    def __init__(self, app: ASGIApp, auth: AuthSettings) -> None:
        self._app = app
        self._tenants = key_digests(auth)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._tenants or _path(scope) in _OPEN or scope["method"] == "OPTIONS":
            await self._app(scope, receive, send)
            return
        tenant = self._tenant(dict(scope["headers"]).get(b"authorization", b""))
        if tenant is None:
            message = "Give a valid API key in the header: `Authorization: Bearer KEY`."
            await error_response(401, message, code="invalid_api_key")(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)

    def _tenant(self, header: bytes) -> str | None:
        scheme, _, key = header.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        given = hashlib.sha256(key.strip()).digest()
        # Every known digest is compared, in constant time each: how long it takes says nothing about the keys.
        found = [tenant for digest, tenant in self._tenants.items() if hmac.compare_digest(digest, given)]
        return found[0] if found else None
