"""What is asked twice a second must cost next to nothing, and never leave the machine."""

import ssl
from typing import Any

import httpx
import pytest

from app.tiers.loopback_http import LOOPBACK


@pytest.mark.parametrize("client", [httpx.Client, httpx.AsyncClient])
def test_a_client_reads_no_certificates(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(*_: object, **__: object) -> None:
        raise AssertionError("42 ms of a core")

    monkeypatch.setattr(ssl, "create_default_context", reads)
    client(**LOOPBACK)
    with pytest.raises(AssertionError):
        client()


@pytest.mark.parametrize("client", [httpx.Client, httpx.AsyncClient])
def test_a_client_goes_through_no_proxy(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert client(**LOOPBACK)._mounts == {}
    assert client()._mounts
