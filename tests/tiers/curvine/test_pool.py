"""What is put comes back; what is damaged never does, and costs nothing twice."""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.errors import PoolError
from app.tiers.curvine import chunkfile
from app.tiers.curvine.fileops import FileOps, _publish_by_link
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.outcomes import Get, Put
from app.tiers.curvine.pool import Pool
from tests.tiers.curvine.conftest import FakeClock, chunk_of, family_of, payload_of, read

SIZE = 20_000


def put(pool: Pool, number: int, size: int = SIZE) -> Put:
    return pool.put(chunk_of(number, size), memoryview(payload_of(number, size)), Landing())


class TestRoundTrip:
    @pytest.mark.parametrize("size", [1, 63, 64, 4096, 524_288, 524_289, 1_500_000])
    def test_bytes_come_back(self, pool: Pool, size: int) -> None:
        assert put(pool, 1, size) is Put.STORED
        assert read(pool, chunk_of(1, size), size) == (Get.HIT, payload_of(1, size))

    def test_a_second_put_writes_nothing(self, pool: Pool) -> None:
        put(pool, 1)
        before = os.stat(pool.path_of(chunk_of(1, SIZE)))
        assert put(pool, 1) is Put.EXISTS
        assert os.stat(pool.path_of(chunk_of(1, SIZE))).st_ino == before.st_ino

    def test_batches(self, pool: Pool) -> None:
        chunks = [chunk_of(n, SIZE) for n in range(5)]
        payloads = [memoryview(payload_of(n, SIZE)) for n in range(5)]
        assert pool.put_many(chunks[:4], payloads[:4], Landing()) == [Put.STORED] * 4
        assert pool.has_many(chunks) == [True] * 4 + [False]
        into = [memoryview(bytearray(SIZE)) for _ in chunks]
        assert pool.get_many([*zip(chunks, into, strict=True)], Landing()) == [Get.HIT] * 4 + [Get.ABSENT]
        assert [bytes(view) for view in into[:4]] == [bytes(payload) for payload in payloads[:4]]
        dropped = pool.drop_many(chunks)
        assert [d is not None for d in dropped] == [True] * 4 + [False]
        assert not any(pool.has_many(chunks))

    def test_the_manifest_is_readable(self, pool: Pool) -> None:
        put(pool, 1)
        assert pool.families() == [family_of(SIZE)]
        family = os.listdir(pool.chunks)[0]
        assert family.startswith("org%2Fmodel.")

    def test_scan_resumes_behind_any_file(self, pool: Pool) -> None:
        for number in range(30):
            put(pool, number, 64 + number % 3)
        whole = [f"{found.family}/{found.digest}" for found in pool.scan()]
        assert len(whole) == 30
        assert whole == sorted(whole)
        for index, name in enumerate(whole):
            assert [f"{found.family}/{found.digest}" for found in pool.scan(name)] == whole[index + 1 :]

    def test_a_path_that_cannot_be_a_pool(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(PoolError, match="directory"):
            Pool(tmp_path / "file").open()


class TestDamage:
    def test_one_flipped_bit_anywhere(self, pool: Pool) -> None:
        size = 700
        chunk = chunk_of(1, size)
        put(pool, 1, size)
        path = Path(pool.path_of(chunk))
        good = path.read_bytes()
        for position in range(len(good)):
            broken = bytearray(good)
            broken[position] ^= 1 << position % 8
            path.write_bytes(broken)
            assert read(pool, chunk, size)[0] is Get.DAMAGED, position
            assert not path.exists()
        assert pool.stats().set_aside == len(good)

    def test_truncated_at_every_4_kib(self, pool: Pool) -> None:
        size = 100_000
        chunk = chunk_of(1, size)
        put(pool, 1, size)
        path = Path(pool.path_of(chunk))
        good = path.read_bytes()
        for length in [*range(0, len(good), 4096), len(good) - 1]:
            path.write_bytes(good[:length])
            assert not pool.has(chunk, size)
            assert read(pool, chunk, size)[0] is Get.DAMAGED
        path.write_bytes(good + b"\0")
        assert read(pool, chunk, size)[0] is Get.DAMAGED

    def test_a_file_of_another_model_copied_over(self, pool: Pool) -> None:
        mine, other = chunk_of(1, SIZE), chunk_of(1, SIZE, model="org/other")
        for chunk in (mine, other):
            pool.put(chunk, memoryview(payload_of(1, SIZE)), Landing())
        shutil.copy(pool.path_of(other), pool.path_of(mine))
        assert read(pool, mine, SIZE)[0] is Get.DAMAGED
        assert read(pool, other, SIZE)[0] is Get.HIT

    def test_a_damaged_file_costs_nothing_twice_and_can_be_stored_again(self, pool: Pool) -> None:
        chunk = chunk_of(1, SIZE)
        put(pool, 1)
        Path(pool.path_of(chunk)).write_bytes(b"rubbish")
        assert read(pool, chunk, SIZE)[0] is Get.DAMAGED
        assert not pool.has(chunk)
        assert len(os.listdir(pool.quarantine)) == 1
        assert put(pool, 1) is Put.STORED
        assert read(pool, chunk, SIZE)[0] is Get.HIT

    def test_a_replaced_file_is_not_set_aside_for_its_predecessor(self, pool: Pool) -> None:
        chunk = chunk_of(1, SIZE)
        put(pool, 1)
        path = Path(pool.path_of(chunk))
        good = path.read_bytes()
        path.write_bytes(b"rubbish")

        class Replaces(FileOps):
            @staticmethod
            def fstat(fd: int) -> os.stat_result:
                status = os.fstat(fd)
                (path.parent / "new").write_bytes(good)
                os.replace(path.parent / "new", path)
                return status

        racing = Pool(pool.root, fs=Replaces())
        assert read(racing, chunk, SIZE)[0] is Get.DAMAGED
        assert read(pool, chunk, SIZE)[0] is Get.HIT

    def test_removed_directory_starts_anew(self, pool: Pool) -> None:
        put(pool, 1)
        shutil.rmtree(pool.root)
        assert read(pool, chunk_of(1, SIZE), SIZE)[0] is Get.ABSENT
        assert not pool.has(chunk_of(1, SIZE))
        assert put(pool, 1) is Put.STORED
        assert read(pool, chunk_of(1, SIZE), SIZE)[0] is Get.HIT


class _Faulty(FileOps):
    """Raises `code` from the named call."""

    def __init__(self, call: str, code: int) -> None:
        def fail(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        setattr(self, call, fail)


class TestFileSystemErrors:
    @pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EACCES])
    @pytest.mark.parametrize("call", ["open", "fstat", "preadv_nowait"])
    def test_a_read_error_is_a_miss(self, pool: Pool, call: str, code: int) -> None:
        put(pool, 1)
        broken = Pool(pool.root, fs=_Faulty(call, code))
        assert read(broken, chunk_of(1, SIZE), SIZE)[0] is Get.ERROR
        assert not pool.has(chunk_of(1, SIZE)), "dropped, so that nobody pays for it again"

    def test_what_cannot_be_dropped_is_remembered_for_a_while(self, pool: Pool, clock: FakeClock) -> None:
        put(pool, 1)
        faults = _Faulty("open", errno.EIO)
        faults.unlink = faults.open  # type: ignore[assignment]
        broken = Pool(pool.root, fs=faults, clock=clock, forget_bad_s=60)
        assert read(broken, chunk_of(1, SIZE), SIZE)[0] is Get.ERROR
        assert read(broken, chunk_of(1, SIZE), SIZE)[0] is Get.ABSENT
        assert not broken.has(chunk_of(1, SIZE))
        clock.now += 61
        assert broken.has(chunk_of(1, SIZE))

    @pytest.mark.parametrize("call", ["writev", "close", "publish", "open"])
    @pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
    def test_a_failed_put_leaves_nothing(self, pool: Pool, call: str, code: int) -> None:
        outcome = put(Pool(pool.root, fs=_Faulty(call, code)), 1)
        assert outcome is (Put.FAILED if code == errno.EIO else Put.FULL)
        assert not pool.has(chunk_of(1, SIZE))
        assert os.listdir(pool.tmp) == []

    def test_no_room_pauses_stores_and_nothing_else(self, pool: Pool, clock: FakeClock) -> None:
        put(pool, 1)
        full = Pool(pool.root, fs=_Faulty("writev", errno.ENOSPC), clock=clock, pause_when_full_s=2)
        assert put(full, 2) is Put.FULL
        assert full.pausing()
        assert read(full, chunk_of(1, SIZE), SIZE)[0] is Get.HIT
        clock.now += 2
        assert not full.pausing()

    def test_a_lookup_tells_failure_from_absence(self, pool: Pool) -> None:
        with pytest.raises(OSError):
            Pool(pool.root, fs=_Faulty("stat", errno.EIO)).has(chunk_of(1, SIZE))

    def test_short_reads_and_writes_are_continued(self, pool: Pool) -> None:
        class Stingy(FileOps):
            @staticmethod
            def writev(fd: int, views: Sequence[bytes | memoryview]) -> int:  # type: ignore[override]
                return os.write(fd, bytes(views[0])[:777] if len(views[0]) else bytes(views[1])[:777])

            @staticmethod
            def preadv_nowait(fd: int, views: Sequence[bytearray | memoryview], offset: int) -> int:
                return os.preadv(fd, [memoryview(views[0])[:555]], offset)

            @staticmethod
            def preadv(fd: int, views: Sequence[bytearray | memoryview], offset: int) -> int:  # type: ignore[override]
                return os.preadv(fd, [memoryview(views[0])[:333]], offset)

        stingy = Pool(pool.root, fs=Stingy())
        assert put(stingy, 1) is Put.STORED
        assert read(stingy, chunk_of(1, SIZE), SIZE) == (Get.HIT, payload_of(1, SIZE))

    def test_a_file_system_without_nonblocking_reads(self, pool: Pool) -> None:
        put(pool, 1, 1_500_000)
        slow = Pool(pool.root, fs=_Faulty("preadv_nowait", errno.EOPNOTSUPP))
        assert read(slow, chunk_of(1, 1_500_000), 1_500_000) == (Get.HIT, payload_of(1, 1_500_000))

    def test_publishing_by_link(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("a")
        (tmp_path / "b").write_text("b")
        assert _publish_by_link(str(tmp_path / "a"), str(tmp_path / "c"))
        assert not _publish_by_link(str(tmp_path / "b"), str(tmp_path / "c"))
        assert (tmp_path / "c").read_text() == "a"
        assert (tmp_path / "b").exists()


class TestAbandonment:
    def test_a_revoked_reader_no_longer_touches_the_buffer(self, pool: Pool) -> None:
        size = 1_500_000
        put(pool, 1, size)
        landing = Landing()

        class Hangs(FileOps):
            """The caller's deadline passes while the second step is being read."""

            @staticmethod
            def preadv_nowait(fd: int, views: Sequence[bytearray | memoryview], offset: int) -> int:
                raise OSError(errno.EOPNOTSUPP, "")

            @staticmethod
            def preadv(fd: int, views: Sequence[bytearray | memoryview], offset: int) -> int:  # type: ignore[override]
                got = os.preadv(fd, views, offset)
                if offset > size // 2 and not landing.revoked:
                    landing.revoke()
                    into[:] = bytes(size)  # the memory's next owner
                return got

        into = bytearray(size)
        assert Pool(pool.root, fs=Hangs()).get(chunk_of(1, size), memoryview(into), landing) is Get.ABANDONED
        assert into == bytes(size)

    def test_a_revoked_writer_publishes_nothing(self, pool: Pool) -> None:
        landing = Landing()

        class Hangs(FileOps):
            @staticmethod
            def writev(fd: int, views: Sequence[bytes | memoryview]) -> int:  # type: ignore[override]
                landing.revoke()
                return os.writev(fd, views)

        pool = Pool(pool.root, fs=Hangs())
        assert pool.put(chunk_of(1, SIZE), memoryview(payload_of(1, SIZE)), landing) is Put.ABANDONED
        assert not pool.has(chunk_of(1, SIZE))
        assert os.listdir(pool.tmp) == []


class TestSweep:
    def test_orphans_go_by_the_file_systems_clock(self, pool: Pool) -> None:
        orphan = Path(pool.tmp) / "dead-1"
        orphan.write_bytes(b"half")
        assert pool.sweep(older_than_s=60) == 0
        os.utime(orphan, (1, 1))
        assert pool.sweep(older_than_s=60) == 1
        assert os.listdir(pool.tmp) == []

    def test_quarantine_is_bounded(self, pool: Pool) -> None:
        for number in range(5):
            (Path(pool.quarantine) / str(number)).write_bytes(b"")
        assert pool.sweep(60, keep_quarantined=2) == 3

    def test_probe_leaves_nothing(self, pool: Pool) -> None:
        pool.probe()
        assert os.listdir(pool.tmp) == []


def test_the_encoding_is_part_of_the_family() -> None:
    assert chunkfile.encoding_fingerprint().startswith("arrow-")
