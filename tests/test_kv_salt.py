"""What must not share KV in L1 and L2 gets salts that differ, and that LMCache can store."""

import re
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.kv_salt import kv_salt

TEXT = st.text(max_size=40)


@given(TEXT)
def test_plain_requests_keep_their_salt(salt: str) -> None:
    assert kv_salt(salt) == salt
    assert kv_salt(None) == kv_salt("") == ""


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=2, max_size=6, unique=True))
def test_different_requests_never_share_a_salt(parts: list[tuple[str, str, str]]) -> None:
    with_scope = [part for part in parts if any(part[1:])]
    # A separator inside a name is no way into another's space: names come from a catalogue, salts are digests or plain.
    clean = [part for part in with_scope if "\0" not in "".join(part)]
    assert len({kv_salt(*part) for part in clean}) == len(clean)


@given(TEXT, st.text(min_size=1, max_size=40))
def test_an_adapters_salt_can_be_stored(salt: str, adapter: str) -> None:
    assert re.fullmatch("[0-9a-f]{32}", kv_salt(salt, adapter))


def request(adapter: str | None = None, salt: str | None = None, embeds: object = None) -> Any:
    name, _, digest = (adapter or "").partition("@")
    lora = SimpleNamespace(lora_name=name, lora_path=f"/tmp/x/{digest}") if adapter else None
    return SimpleNamespace(
        request_id="r",
        cache_salt=salt,
        lora_request=lora,
        prompt_embeds=embeds,
        all_token_ids=[1, 2],
        prompt_token_ids=[1, 2],
        num_prompt_tokens=2,
        sampling_params=None,
        mm_features=None,
        status=None,
        kv_transfer_params=None,
    )


def test_the_connector_keys_an_adapters_kv_apart() -> None:
    from app.tiers.connector import TierConnector

    connector = TierConnector.__new__(TierConnector)
    connector.lazy_offload = False
    connector.scheduler_adapter = None
    salts = []
    adapters = (request("m:a@1"), request("m:b@1"), request("m:a@2"), request("m:a@1", "t"))
    for asked in (request(), request(salt="t"), *adapters, request(embeds=1)):
        connector.request_trackers = {}
        salts.append(connector._get_or_create_request_tracker(asked).cache_salt)
    assert salts[:2] == ["", "t"]
    assert len(set(salts)) == len(salts)
