"""The compiled reader gives the same answers as the step-by-step one, or none."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import xxhash

from app.tiers.curvine import fused
from app.tiers.curvine.fused import STEP, FusedReader
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.pool import Get, Pool, Put
from app.tiers.curvine.service import _runs
from tests.tiers.curvine.conftest import chunk_of, payload_of, read

HEAD, NOWAIT = b"h" * 4096, os.RWF_NOWAIT
SIZES = [1, 4096, STEP - 4096, STEP - 4095, STEP, STEP + STEP // 4 + 1, 3 * STEP + 12345]


@pytest.fixture(scope="module")
def reader() -> FusedReader:
    fused.prepare(wait=True)
    reader = fused.reader()
    assert reader is not None, "numba, preadv2 and xxhash's functions are there on Linux"
    return reader


def checksum(payload: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(payload)


def tail_of(checksum: str) -> bytes:
    return f"tail {checksum}".encode()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[bytes], int]]:
    """Writes a file and opens it for reading."""
    fds: list[int] = []

    def write(content: bytes) -> int:
        path = tmp_path / str(len(fds))
        path.write_bytes(content)
        fds.append(os.open(path, os.O_RDONLY))
        return fds[-1]

    yield write
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("size", SIZES)
def test_it_reads_and_hashes_every_byte(reader: FusedReader, opened: Callable[[bytes], int], size: int) -> None:
    payload = payload_of(1, size)
    tail = tail_of(checksum(payload))
    fd = opened(HEAD + payload + tail)
    into = bytearray(size)
    assert reader.read(fd, HEAD, memoryview(into), len(tail), tail_of, NOWAIT) is True
    assert into == payload
    for at in {len(HEAD), len(HEAD) + size // 2, len(HEAD) + size - 1, 0, len(HEAD) + size}:
        damaged = bytearray(HEAD + payload + tail)
        damaged[at] ^= 1
        assert reader.read(opened(bytes(damaged)), HEAD, memoryview(into), len(tail), tail_of, NOWAIT) is False, at


def test_a_file_that_ends_early_is_no_answer(reader: FusedReader, opened: Callable[[bytes], int]) -> None:
    payload = payload_of(1, 2 * STEP)
    tail = tail_of(checksum(payload))
    whole = HEAD + payload + tail
    into = memoryview(bytearray(len(payload)))
    for length in (0, 100, len(HEAD), STEP, len(whole) - 1):
        assert reader.read(opened(whole[:length]), HEAD, into, len(tail), tail_of, NOWAIT) is None


def test_what_it_has_no_room_for_is_no_answer(reader: FusedReader, opened: Callable[[bytes], int]) -> None:
    fd = opened(b"")
    assert reader.read(fd, bytes(40_000), memoryview(bytearray(10)), 10, tail_of, NOWAIT) is None
    assert reader.read(fd, HEAD, memoryview(bytearray(0)), 10, tail_of, NOWAIT) is None


@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_the_pool_answers_alike_with_and_without_it(
    reader: FusedReader, pool: Pool, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    chunks = [chunk_of(number, size) for number in range(2)]
    damaged = Path(pool.path_of(chunks[1]))
    for there in (reader, None):
        monkeypatch.setattr(fused, "reader", lambda there=there: there)
        for number, chunk in enumerate(chunks):
            landed = pool.put(chunk, memoryview(payload_of(number, size)), Landing())
            assert landed in (Put.STORED, Put.EXISTS)
        content = bytearray(damaged.read_bytes())
        content[5000] ^= 1
        damaged.write_bytes(content)
        assert read(pool, chunks[0], size) == (Get.HIT, payload_of(0, size))
        assert read(pool, chunks[1], size)[0] is Get.DAMAGED


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 8, 64, 1000])
def test_runs_cover_a_load_in_order_and_end_with_single_chunks(count: int, workers: int) -> None:
    runs = _runs(count, workers)
    assert [index for run in runs for index in run] == list(range(count))
    lengths = [len(run) for run in runs]
    assert lengths == sorted(lengths, reverse=True)
    assert not lengths or lengths[-1] == 1
