"""`tierserve bench pool`: the L2 pool against LMCache's own file adapters and against plain reads, on one directory.

Rounds alternate between the contenders, so that a machine that slows down slows all of them; figures are medians.
Store writes files that are new every round and emptied at once, so that no contender pays for another's write-back.
Emptied, and removed at the very end: ext4 does not give out inodes that were freed in the last minute, and looks at
every one of them whenever a file is created, so that whoever deletes much makes all the others slow, and itself.
"""

import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import xxhash

from app.tiers.curvine.fused_read import STEP

MIB = 1024 * 1024
CASES = ((8, 12 * MIB), (64, MIB))
FILE_COUNTS = (1_000, 10_000, 100_000)
CONTENDERS = ("ours", "fs", "fs_native")
_COLD_ROUNDS = 3
_WAIT_S = 120.0


@dataclass
class Samples:
    """One case's measurements: figure -> contender -> one number a round."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, figure: str, contender: str, value: float) -> None:
        self.values.setdefault(figure, {}).setdefault(contender, []).append(value)

    def medians(self) -> dict[str, dict[str, float]]:
        return {
            figure: {name: round(statistics.median(values), 5) for name, values in contenders.items()}
            for figure, contenders in self.values.items()
        }


class Contender:
    """An LMCache adapter, driven the way its controllers drive it: submit, poll the descriptor, ask."""

    def __init__(self, name: str, directory: Path) -> None:
        from lmcache.v1.distributed.l2_adapters import create_l2_adapter
        from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class

        from app.tiers.curvine import adapter as curvine

        curvine.register()
        directory.mkdir(parents=True, exist_ok=True)
        kind, place = (curvine.TYPE_NAME, "path") if name == "ours" else (name, "base_path")
        self.directory = directory
        self.adapter: Any = create_l2_adapter(get_l2_adapter_config_class(kind).from_dict({place: str(directory)}))

    def store(self, keys: Sequence[Any], objects: Sequence[Any]) -> float:
        started = time.perf_counter()
        task = self.adapter.submit_store_task(keys, objects)
        done: dict[int, Any] = {}
        while task not in done:
            _wait(self.adapter.get_store_event_fd())
            done |= self.adapter.pop_completed_store_tasks()
        took = time.perf_counter() - started
        if not done[task].is_successful():
            raise click.ClickException(f"{self.directory} did not store; is the file system full?")
        return took

    def load(self, keys: Sequence[Any], objects: Sequence[Any]) -> float:
        started = time.perf_counter()
        task = self.adapter.submit_load_task(keys, objects)
        return self._finish(started, len(keys), self.adapter.get_load_event_fd(), self.adapter.query_load_result, task)

    def lookup(self, keys: Sequence[Any], layout: Any) -> float:
        started = time.perf_counter()
        task = self.adapter.submit_lookup_and_lock_task(keys, {0: layout})
        fd, query = self.adapter.get_lookup_and_lock_event_fd(), self.adapter.query_lookup_and_lock_result
        took = self._finish(started, len(keys), fd, query, task)
        self.adapter.submit_unlock(keys)
        return took

    def _finish(self, started: float, want: int, fd: int, query: Callable[[int], Any], task: int) -> float:
        while (bitmap := query(task)) is None:
            _wait(fd)
        took = time.perf_counter() - started
        if bitmap.popcount() != want:
            raise click.ClickException(f"{self.directory}: {bitmap.popcount()} of {want} keys found")
        return took

    def clear(self) -> None:
        """Gives back the room of what was stored."""
        for path in _files(self.directory):
            os.truncate(path, 0)

    def close(self) -> None:
        self.adapter.close()


def _wait(fd: int) -> None:
    from lmcache.cli.commands.bench.l2_adapter_bench.data import wait_eventfd

    if not wait_eventfd(fd, _WAIT_S):
        raise click.ClickException(f"an adapter did not answer within {_WAIT_S:.0f} s")


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.suffix in (".arrow", ".data")]


class PlainReads:
    """The ceiling: threads that read the same files into the same buffers and check nothing; or, `hashed`, compute the
    checksum that the pool's readers do, of each step while it is in the core's own cache."""

    def __init__(self, threads: int, *, hashed: bool = False) -> None:
        self._threads = threads
        self._step = STEP if hashed else sys.maxsize
        self._hash = xxhash.xxh3_128 if hashed else None

    def load(self, paths: Sequence[Path], views: Sequence[memoryview]) -> float:
        work = iter(list(zip(paths, views, strict=True)))
        lock = threading.Lock()
        started = time.perf_counter()
        threads = [threading.Thread(target=self._run, args=(work, lock)) for _ in range(self._threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - started

    def _run(self, work: Iterator[tuple[Path, memoryview]], lock: threading.Lock) -> None:
        while True:
            with lock:
                item = next(work, None)
            if item is None:
                return
            path, view = item
            fd, state = os.open(path, os.O_RDONLY), self._hash() if self._hash is not None else None
            try:
                at = 0
                while at < len(view):
                    step = view[at : at + self._step]
                    read = os.preadv(fd, [step], at) or len(view)
                    if state is not None:
                        state.update(step[:read])
                    at += read
            finally:
                os.close(fd)
            if state is not None:
                state.hexdigest()


def run(
    path: str | None = None,
    *,
    rounds: int = 5,
    cases: Sequence[tuple[int, int]] = CASES,
    file_counts: Sequence[int] = FILE_COUNTS,
    cold: bool = True,
) -> dict[str, Any]:
    """Measures, in a new directory below `path` (default: the system's temporary directory) that is removed afterwards.

    Returns:
        `cases`: one entry a case with `keys`, `bytes` (of a key), and, each by contender, `load_mb_s`, `store_mb_s`,
        `lookup_ms` (a key), and the cold-cache `cold_load_mb_s`; `extra_mb`: peak memory beyond the buffers;
        `lookup_by_files`: our lookup a key against the number of files in the pool.
    """
    home = Path(tempfile.mkdtemp(prefix="tierserve-bench-", dir=path))
    try:
        return {
            "path": str(home.parent),
            "rounds": rounds,
            "threads": os.cpu_count(),
            "cases": [_case(home, keys, size, rounds, cold) for keys, size in cases],
            "lookup_by_files": _lookup_by_files(home / "many", file_counts, rounds),
        }
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _case(home: Path, count: int, size: int, rounds: int, cold: bool) -> dict[str, Any]:
    import torch
    from lmcache.cli.commands.bench.l2_adapter_bench.data import make_memory_objects, make_object_keys
    from lmcache.v1.distributed.api import MemoryLayoutDesc

    store_buffer = torch.randint(0, 256, (count * size,), dtype=torch.uint8)
    load_buffer = torch.zeros(count * size, dtype=torch.uint8)
    objects = make_memory_objects(load_buffer, count, size, 0)
    sources = make_memory_objects(store_buffer, count, size, 0)
    noise = torch.randint(0, 256, (count * size,), dtype=torch.uint8)
    store_buffer.copy_(noise)  # the helper fills with one byte a key
    layout = MemoryLayoutDesc(shapes=[torch.Size([size])], dtypes=[torch.uint8])
    views = [memoryview(obj.byte_array) for obj in objects]
    contenders = {name: Contender(name, home / f"{name}-{count}") for name in CONTENDERS}
    samples, extra = Samples(), dict[str, float]()
    threads = os.cpu_count() or 2
    plain = {"preadv": PlainReads(threads), "preadv_hashed": PlainReads(threads, hashed=True)}
    try:
        keys = make_object_keys(count)
        for contender in contenders.values():
            contender.store(keys, sources)
            contender.load(keys, objects)
            if not torch.equal(load_buffer, store_buffer):
                raise click.ClickException(f"{contender.directory} returned other bytes than were stored")
        files = _files(contenders["fs_native"].directory)
        for number in range(rounds + 1):
            order = [*CONTENDERS, *plain]
            order = order[number % len(order) :] + order[: number % len(order)]
            measured = Samples() if number == 0 else samples  # the first round warms up
            for name in order:
                if name in plain:
                    measured.add("load_mb_s", name, count * size / MIB / plain[name].load(files, views))
                    continue
                measured.add("load_mb_s", name, count * size / MIB / contenders[name].load(keys, objects))
                measured.add("lookup_ms", name, contenders[name].lookup(keys, layout) / count * 1e3)
        if cold:
            _cold(contenders, plain["preadv"], files, keys, objects, views, samples)
        with _peak(extra, "load"):
            contenders["ours"].load(keys, objects)
        for number in range(rounds + 1):
            measured = Samples() if number == 0 else samples
            fresh = make_object_keys(count, key_offset=(number + 1) * count)
            for name in (*CONTENDERS[number % 3 :], *CONTENDERS[: number % 3]):
                contenders[name].clear()
                measured.add("store_mb_s", name, count * size / MIB / contenders[name].store(fresh, sources))
        contenders["ours"].clear()
        with _peak(extra, "store"):
            contenders["ours"].store(make_object_keys(count, key_offset=10_000_000), sources)
    finally:
        for contender in contenders.values():
            contender.close()
    return {"keys": count, "bytes": size, **samples.medians(), "extra_mb": extra}


def _cold(
    contenders: dict[str, Contender],
    plain: PlainReads,
    files: Sequence[Path],
    keys: Sequence[Any],
    objects: Sequence[Any],
    views: Sequence[memoryview],
    samples: Samples,
) -> None:
    """Loads after the page cache has been emptied of the files."""
    total = sum(len(view) for view in views) / MIB
    for _ in range(_COLD_ROUNDS):
        for name, contender in contenders.items():
            _evict(_files(contender.directory))
            samples.add("cold_load_mb_s", name, total / contender.load(keys, objects))
        _evict(files)
        samples.add("cold_load_mb_s", "preadv", total / plain.load(files, views))


def _evict(paths: Sequence[Path]) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


@contextmanager
def _peak(into: dict[str, float], name: str) -> Iterator[None]:
    """Adds the peak of resident memory over what it was before, in MiB; nothing where the kernel does not tell."""
    gc.collect()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before = _status_kb("VmRSS")
    yield
    into[name] = round(max(0, _status_kb("VmHWM") - before) / 1024, 2)


def _status_kb(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def _lookup_by_files(home: Path, counts: Sequence[int], rounds: int) -> list[dict[str, float]]:
    """Our lookup among more and more files; 64 keys at a time, half of them there."""
    import torch
    from lmcache.cli.commands.bench.l2_adapter_bench.data import make_object_keys
    from lmcache.v1.distributed.api import MemoryLayoutDesc

    from app.tiers.curvine.adapter import CurvineL2Adapter

    if not counts:
        return []
    layout = MemoryLayoutDesc(shapes=[torch.Size([64])], dtypes=[torch.uint8])
    adapter = CurvineL2Adapter({"path": str(home), "recover": False, "janitor": "off"})
    rows: list[dict[str, float]] = []
    made = 0
    try:
        for count in sorted(counts):
            for key in make_object_keys(count - made, key_offset=made):
                path = adapter.path_of(key, layout)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"x")
            made = count
            took = []
            for number in range(rounds + 1):
                more = number % 32
                keys = make_object_keys(64, key_offset=made - 32 - more)
                started = time.perf_counter()
                task = adapter.submit_lookup_and_lock_task(keys, {0: layout})
                while (bitmap := adapter.query_lookup_and_lock_result(task)) is None:
                    _wait(adapter.get_lookup_and_lock_event_fd())
                took.append((time.perf_counter() - started) / len(keys) * 1e3)
                assert bitmap.popcount() == 32 + more, bitmap.popcount()
            rows.append({"files": count, "lookup_ms": round(statistics.median(took[1:]), 5)})
    finally:
        adapter.close()
        shutil.rmtree(home, ignore_errors=True)
    return rows


def verdict(result: dict[str, Any]) -> list[str]:
    """What a reader wants to know first: our figures relative to the others', one line a case."""
    lines = []
    for case in result["cases"]:
        load, store, lookup = case["load_mb_s"], case["store_mb_s"], case["lookup_ms"]
        ours = load["ours"]
        lines.append(
            f"{case['keys']} x {case['bytes'] / MIB:g} MiB: load {ours:.0f} MB/s, {ours / load['fs_native']:.2f} of "
            f"fs_native, {ours / load['preadv']:.2f} of plain reads, {ours / load['preadv_hashed']:.2f} of plain reads "
            f"with the same checksum; store {store['ours']:.0f} MB/s, "
            f"{store['ours'] / store['fs_native']:.2f} of fs_native; lookup {lookup['ours']:.4f} ms a key"
        )
    by_files = result["lookup_by_files"]
    lines += [f"lookup among {row['files']:,} files: {row['lookup_ms']:.4f} ms a key" for row in by_files]
    return lines


@click.command("pool")
@click.option("--path", type=click.Path(exists=True, file_okay=False), help="Directory to measure in, e.g. a mount.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Alternating rounds; medians.")
@click.option("--cold/--no-cold", default=True, show_default=True, help="Also with an empty page cache.")
@click.option("--files/--no-files", default=True, show_default=True, help="Also lookups among up to 100,000 files.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def pool(path: str | None, rounds: int, cold: bool, files: bool, as_json: bool) -> None:
    """Measure the L2 pool against LMCache's fs and fs_native adapters and plain reads."""
    result = run(path, rounds=rounds, cold=cold, file_counts=FILE_COUNTS if files else ())
    click.echo(json.dumps(result, indent=1) if as_json else "\n".join(verdict(result)))
