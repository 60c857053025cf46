"""Who may ask: API keys and the tenants behind them."""

import re

from pydantic import Field, field_validator, model_validator

from app.settings_section import VARIABLE, Section

# What LMCache allows in a cache salt and in object file names, minus what would be awkward in a header.
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
# What a client can send in a header: no spaces, no other alphabets.
_KEY = re.compile(r"[!-~]+")


class ApiKeySettings(Section):
    """One key and the tenant it belongs to. Tenants never share cached KV."""

    tenant: str
    key: str | None = Field(None, min_length=8, description="The key itself. Prefer key_env outside a laptop.")
    key_env: str | None = Field(None, description="Environment variable of the ingress that holds the key.")

    @field_validator("tenant")
    @classmethod
    def _valid_tenant(cls, value: str) -> str:
        if not _TENANT.fullmatch(value):
            raise ValueError("letters, digits and . _ - only, at most 64")
        return value

    @field_validator("key")
    @classmethod
    def _sendable_key(cls, value: str | None) -> str | None:
        if value is not None and not _KEY.fullmatch(value):
            raise ValueError("no client can send it: use ASCII letters, digits and signs, without spaces")
        return value

    @field_validator("key_env")
    @classmethod
    def _valid_variable(cls, value: str | None) -> str | None:
        if value is not None and not VARIABLE.fullmatch(value):
            raise ValueError(f"{value!r} is no name of a variable: give its name, without $")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> "ApiKeySettings":
        if (self.key is None) == (self.key_env is None):
            raise ValueError("give exactly one of `key` and `key_env`")
        return self


class AuthSettings(Section):
    api_keys: tuple[ApiKeySettings, ...] = Field((), description="Empty: every request is served, without a tenant.")

    @model_validator(mode="after")
    def _one_tenant_per_key(self) -> "AuthSettings":
        tenants: dict[str, str] = {}
        for entry in self.api_keys:
            if entry.key is not None and tenants.setdefault(entry.key, entry.tenant) != entry.tenant:
                raise ValueError(
                    f"api_keys: {tenants[entry.key]} and {entry.tenant} have the same key: give each its own"
                )
        return self
