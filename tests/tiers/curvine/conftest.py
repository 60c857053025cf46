"""Small chunks, pools and the means to damage them."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.tiers.curvine.chunkfile import encoding_fingerprint
from app.tiers.curvine.fused import FusedFiles, fused_files
from app.tiers.curvine.identity import ChunkId, Family
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.layout import Layout, Part
from app.tiers.curvine.outcomes import Get
from app.tiers.curvine.pool import Pool


def family_of(payload_bytes: int, **changes: str | int) -> Family:
    layout = Layout((Part("uint8", (payload_bytes,)),)).text
    fields: dict[str, str | int] = {"model": "org/model", "layout": layout, "encoding": encoding_fingerprint()}
    return Family.of(**{**fields, **changes})  # type: ignore[arg-type]


def chunk_of(number: int, payload_bytes: int, **changes: str | int) -> ChunkId:
    return family_of(payload_bytes, **changes).chunk(number.to_bytes(32, "big"))


def payload_of(number: int, payload_bytes: int) -> bytes:
    """Different for every number, reproducible in another process."""
    return random.Random(number).randbytes(payload_bytes)


def read(pool: Pool, chunk: ChunkId, payload_bytes: int) -> tuple[Get, bytes]:
    into = bytearray(payload_bytes)
    return pool.get(chunk, memoryview(into), Landing()), bytes(into)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    pool = Pool(tmp_path / "pool")
    pool.open()
    yield pool
    if os.path.isdir(pool.root):
        pool.check_integrity()


@pytest.fixture(scope="session")
def compiled() -> FusedFiles:
    files = fused_files()
    assert files is not None, "numba, preadv2, renameat2 and xxhash's functions are there on Linux"
    return files


class FakeClock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


Damage = Callable[[bytearray], None]
