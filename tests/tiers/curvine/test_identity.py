"""Two builds that differ in anything never share a name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import PoolError
from app.tiers.curvine.identity import ChunkId, Family, escape
from tests.tiers.curvine.conftest import chunk_of, family_of

FIELDS = {
    "model": "org/other",
    "revision": "b2",
    "dtype": "bfloat16",
    "layout": "float16[2,2]",
    "chunk_tokens": 64,
    "hash_algorithm": "sha256",
    "encoding": "arrow-0",
}


@pytest.mark.parametrize("name", FIELDS)
def test_every_family_field_is_part_of_the_name(name: str) -> None:
    base, other = family_of(64), family_of(64, **{name: FIELDS[name]})  # type: ignore[arg-type]
    assert base.directory != other.directory
    assert base.chunk(b"x").digest != other.chunk(b"x").digest


def test_every_chunk_field_is_part_of_the_name() -> None:
    family = family_of(64)
    names = {
        family.chunk(b"x").digest,
        family.chunk(b"y").digest,
        family.chunk(b"x", kv_rank=1).digest,
        family.chunk(b"x", group=1).digest,
        family.chunk(b"x", salt="s").digest,
        family.chunk(b"x", kv_rank=11).digest,
        family.chunk(b"x", kv_rank=1, group=1).digest,
    }
    assert len(names) == 7


@given(st.text(), st.text())
def test_escape_has_no_collisions(a: str, b: str) -> None:
    assert (escape(a) == escape(b)) == (a == b)


@given(st.text(min_size=1))
def test_escape_is_one_path_component(name: str) -> None:
    assert "/" not in escape(name)
    assert escape(name) not in (".", "..", "")


def test_the_slash_replacement_of_others_does_not_collide() -> None:
    assert family_of(64, model="a-SEP-b").directory != family_of(64, model="a/b").directory


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    st.binary(max_size=64),
    st.integers(0, 2**32 - 1),
    st.integers(0, 99),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=128),
)
def test_fields_can_be_undone(model: str, chunk_hash: bytes, kv_rank: int, group: int, salt: str) -> None:
    chunk = family_of(64, model=model).chunk(chunk_hash, kv_rank=kv_rank, group=group, salt=salt)
    assert ChunkId.from_fields(chunk.fields()) == chunk
    assert len(chunk.relative.split("/")[0]) < 255


def test_a_manifest_can_be_undone_and_is_checked() -> None:
    family = family_of(64, revision="r")
    assert Family.from_manifest(family.manifest()) == family
    for broken in ({}, {**family.manifest(), "format": 99}, {**family.manifest(), "model": 3}):
        with pytest.raises(PoolError):
            Family.from_manifest(broken)
    with pytest.raises(PoolError):
        ChunkId.from_fields({**chunk_of(1, 64).fields(), "chunk_hash": "zz"})


def test_identities_are_frozen() -> None:
    with pytest.raises(AttributeError):
        chunk_of(1, 64).salt = "other"  # type: ignore[misc]
