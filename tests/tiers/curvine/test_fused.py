"""The compiled reader gives the same answers as the one that reads file by file, or hands a file back."""

import gc
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import xxhash

from app.tiers.curvine import chunkfile, fused
from app.tiers.curvine.chunkfile import CHECKSUM_HEX, Frame
from app.tiers.curvine.fused import FusedFiles
from app.tiers.curvine.fused_layout import AROUND_ROOM, MOST_ROWS, Answer
from app.tiers.curvine.fused_read import STEP
from app.tiers.curvine.fused_table import FusedTable, Opened, Taken
from app.tiers.curvine.landing import AbandonedError, Landing
from app.tiers.curvine.outcomes import Get, Put
from app.tiers.curvine.pool import Pool
from tests.tiers.curvine.conftest import chunk_of, payload_of, read

SIZES = [1, 4096, STEP - 4096, STEP - 4095, STEP, STEP + STEP // 4 + 1, 3 * STEP + 12345]


class Files:
    """Chunk files, and tables of them."""

    def __init__(self, compiled: FusedFiles, directory: Path) -> None:
        self.compiled = compiled
        self.directory = directory

    def write(self, number: int, size: int, change: Callable[[bytearray], None] = lambda _: None) -> str:
        frame, payload = chunkfile.frame(chunk_of(number, size), size), payload_of(number, size)
        content = bytearray(frame.head() + payload + frame.tail(xxhash.xxh3_128_hexdigest(payload)))
        change(content)
        path = self.directory / f"{number}"
        path.write_bytes(content)
        return str(path)

    def table(self, rows: list[tuple[str, int, int]]) -> tuple[FusedTable, list[bytearray]]:
        table, places = self.compiled.to_read(), [bytearray(size) for _, _, size in rows]
        for (path, number, size), place in zip(rows, places, strict=True):
            table.add(chunk_of(number, size), memoryview(place), path)
        table.close()
        return table, places


def handed_back(table: FusedTable) -> Taken:
    """The row that needs help, its file closed again."""
    taken = table.take(Landing(), 1)
    assert taken is not None
    if isinstance(taken.file, Opened):
        os.close(taken.file.fd)
    return taken


def frame_of(number: int, size: int) -> Frame:
    return chunkfile.frame(chunk_of(number, size), size)


@pytest.fixture
def files(compiled: FusedFiles, tmp_path: Path) -> Files:
    return Files(compiled, tmp_path)


@pytest.mark.parametrize("size", SIZES)
def test_it_reads_every_byte_and_sees_every_flipped_bit(files: Files, size: int) -> None:
    frame = frame_of(1, size)
    table, (place,) = files.table([(files.write(1, size), 1, size)])
    assert table.take(Landing(), 1) is None
    assert table.finished(1) == [(0, Answer.DONE)]
    assert place == payload_of(1, size)
    head, whole = frame.head_bytes, frame.size
    for at in {0, head - 1, head, head + size // 2, head + size - 1, head + size, whole - 1}:

        def flip(content: bytearray, at: int = at) -> None:
            content[at] ^= 1

        table, _ = files.table([(files.write(1, size, flip), 1, size)])
        assert isinstance(handed_back(table).file, Opened), at
        assert table.finished(1) == []


def test_what_is_not_there_or_of_another_size_is_handed_back(files: Files) -> None:
    rows = [("/nowhere/at all", 0, 4096), (files.write(1, 5000), 1, 4096), (files.write(2, 4096), 2, 4096)]
    table, places = files.table(rows)
    absent, other = handed_back(table), handed_back(table)
    assert isinstance(absent.file, FileNotFoundError)
    assert isinstance(other.file, Opened)
    assert other.file.size == frame_of(1, 5000).size
    assert other.file.inode == Path(rows[1][0]).stat().st_ino
    assert other.file.device == Path(rows[1][0]).stat().st_dev
    assert table.take(Landing(), 1) is None
    assert table.finished(1) == [(2, Answer.DONE)]
    assert places[2] == payload_of(2, 4096)
    table.check_integrity()


def test_a_file_system_that_might_block_is_handed_back(files: Files) -> None:
    # Anonymous memory refuses reads that must not block, as FUSE does.
    path = files.write(1, 4096)
    memory = os.memfd_create("tierserve-test", os.MFD_CLOEXEC)
    try:
        os.write(memory, Path(path).read_bytes())
        table, _ = files.table([(f"/proc/self/fd/{memory}", 1, 4096)])
        taken = handed_back(table)
    finally:
        os.close(memory)
    assert isinstance(taken.file, Opened)
    assert table.finished(1) == []


def test_a_name_that_is_too_long_is_handed_back_unopened(files: Files) -> None:
    table, _ = files.table([("x" * 5000, 1, 4096)])
    assert handed_back(table).file is None


def test_an_identity_that_is_too_long_for_the_loop_is_read_all_the_same(files: Files, pool: Pool) -> None:
    chunk = chunk_of(1, 4096).family.chunk(b"long", salt="s" * 2 * AROUND_ROOM)
    assert pool.put(chunk, memoryview(payload_of(1, 4096)), Landing()) is Put.STORED
    assert read(pool, chunk, 4096) == (Get.HIT, payload_of(1, 4096))


def test_workers_share_a_table_and_each_row_is_one_workers(files: Files) -> None:
    size, count = 100_000, MOST_ROWS
    rows = [(files.write(number, size), number, size) for number in range(count)]
    for _ in range(20):
        table, places = files.table(rows)

        def work(worker: int, table: FusedTable = table) -> list[int]:
            assert table.take(Landing(), worker) is None
            return [row for row, _ in table.finished(worker)]

        with ThreadPoolExecutor(4) as pool:
            answers = [answer for worker in pool.map(work, range(1, 5)) for answer in worker]
        assert sorted(answers) == list(range(count))
        table.check_integrity()
        assert places == [payload_of(number, size) for number in range(count)]


def test_memory_goes_from_table_to_table_without_a_trace(files: Files) -> None:
    size = 5000
    good, bad = files.write(1, size), files.write(2, size, lambda content: content.reverse())
    for _ in range(2 * MOST_ROWS):
        table, _ = files.table([(good, 1, size)])
        table.take(Landing(), 1)
        assert table.finished(1) == [(0, Answer.DONE)]
        table, _ = files.table([(bad, 2, size)])
        handed_back(table)
        assert table.finished(1) == []


def test_whoever_gathers_goes_on_though_nobody_comes(files: Files) -> None:
    size = 4096
    table, place = files.compiled.to_read(), bytearray(4096)
    table.gather()
    follower = threading.Thread(target=table.take, args=(Landing(), 2))
    follower.start()
    table.gather()
    table.add(chunk_of(1, size), memoryview(place), files.write(1, size))
    table.close()
    follower.join(10)
    assert not follower.is_alive()
    assert table.finished(2) == [(0, Answer.DONE)]
    assert table.take(Landing(), 1) is None


def test_who_has_been_given_up_neither_waits_nor_writes(files: Files) -> None:
    size = 4096
    place = bytearray(size)
    table = files.compiled.to_read()
    landing, raised = Landing(), []

    def wait() -> None:
        try:
            table.take(landing, 1)
        except AbandonedError as error:
            raised.append(error)

    landing.gate()
    waiting = threading.Thread(target=wait)
    waiting.start()
    landing.revoke()
    waiting.join(10)
    assert raised
    assert not waiting.is_alive()
    table.add(chunk_of(1, size), memoryview(place), files.write(1, size))
    table.close()
    with pytest.raises(AbandonedError):
        table.take(landing, 1)
    assert place == bytes(size)


@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_the_pool_answers_alike_with_and_without_it(
    compiled: FusedFiles, pool: Pool, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    chunks = [chunk_of(number, size) for number in range(2)]
    damaged = Path(pool.path_of(chunks[1]))
    for there in (compiled, None):
        monkeypatch.setattr(fused, "fused_files", lambda there=there: there)
        for number, chunk in enumerate(chunks):
            landed = pool.put(chunk, memoryview(payload_of(number, size)), Landing())
            assert landed in (Put.STORED, Put.EXISTS)
        content = bytearray(damaged.read_bytes())
        content[5000] ^= 1
        damaged.write_bytes(content)
        assert read(pool, chunks[0], size) == (Get.HIT, payload_of(0, size))
        assert read(pool, chunks[1], size)[0] is Get.DAMAGED


def test_memory_outlives_a_table_that_the_garbage_collector_finds(files: Files) -> None:
    size = 5000
    path, place = files.write(1, size), memoryview(bytearray(size))
    for _ in range(20):
        table = files.compiled.to_read()
        table._memory.table = table  # type: ignore[attr-defined]  # a cycle, as an error's traceback makes
        del table
        gc.collect()
        table = files.compiled.to_read()
        assert len(table._memory.states) == MOST_ROWS
        vars(table._memory).pop("table", None)
        table.add(chunk_of(1, size), place, path)
        table.close()
        assert table.take(Landing(), 1) is None
        assert table.finished(1) == [(0, Answer.DONE)]


def test_a_compiled_writer_that_changes_a_byte_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.tiers.curvine.fused_write.CHECKSUM_HEX", CHECKSUM_HEX - 8)
    with pytest.raises(RuntimeError, match="the compiled writer"):
        FusedFiles()
