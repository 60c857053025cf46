"""`tierserve bench compression`: would zstd pay, on the chunks that a pool really holds?

Compression saves reading and costs computing. With ratio r and a core that decompresses D bytes of payload a second, a
load is faster only from a mount that gives less than D * (1 - 1 / r) a core: a break-even to compare with the mount's
own speed. Bytes are also tried shuffled (all first bytes of the elements, then all second ones), which is what makes
floating point compressible at all.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import zstandard

from app.tiers.curvine.chunkfile import inspect
from app.tiers.curvine.layout import Layout

MIB = 1024 * 1024
LEVELS = (1, 3)


@dataclass(frozen=True, slots=True)
class Sample:
    """One chunk's payload and the width of its elements."""

    payload: bytes
    width: int

    def shuffled(self) -> bytes:
        return b"".join(self.payload[at :: self.width] for at in range(self.width))


def read_samples(pool: Path, most: int) -> list[Sample]:
    """Chunks of one tensor, spread over the pool.

    Raises:
        click.ClickException: there is none.
    """
    import pyarrow as pa

    paths = sorted(pool.glob("chunks/*/*/*.arrow"))
    samples = []
    for path in paths[:: max(1, len(paths) // most)][:most]:
        layout = Layout.parse(inspect(str(path)).chunk.family.layout)
        with pa.memory_map(str(path)) as source:
            column = pa.ipc.open_file(source).read_all().column("kv").chunk(0)
            samples.append(Sample(column.storage.values.buffers()[1].to_pybytes(), layout.parts[0].element_bytes))
    if not samples:
        raise click.ClickException(f"no chunks in {pool}: give the directory of a pool that has served requests")
    return samples


def run(samples: list[Sample], levels: tuple[int, ...] = LEVELS) -> list[dict[str, Any]]:
    """One row a form and level; speeds in MiB of payload a second and core, by processor time."""
    forms: dict[str, Callable[[Sample], bytes]] = {"as stored": lambda s: s.payload, "bytes shuffled": Sample.shuffled}
    rows = []
    for name, form in forms.items():
        raw = [form(sample) for sample in samples]
        for level in levels:
            compressor, decompressor = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
            packed, packing = _timed(lambda raw=raw, c=compressor: [c.compress(piece) for piece in raw])  # type: ignore[misc]
            back, unpacking = _timed(lambda packed=packed, d=decompressor: [d.decompress(piece) for piece in packed])  # type: ignore[misc]
            assert back == raw
            size = sum(map(len, raw))
            ratio, speed = size / sum(map(len, packed)), size / unpacking / MIB
            rows.append(
                {
                    "form": name,
                    "level": level,
                    "ratio": round(ratio, 3),
                    "compress_mib_s": round(size / packing / MIB),
                    "decompress_mib_s": round(speed),
                    "pays_below_mib_s": round(max(0.0, speed * (1 - 1 / ratio))),
                }
            )
    return rows


def _timed(work: Callable[[], list[bytes]]) -> tuple[list[bytes], float]:
    started = time.thread_time()
    return work(), time.thread_time() - started


@click.command("compression")
@click.argument("pool", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--chunks", type=click.IntRange(1), default=24, show_default=True, help="How many chunks to try.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def compression(pool: Path, chunks: int, as_json: bool) -> None:
    """Measure what zstd makes of the chunks in POOL."""
    rows = run(read_samples(pool, chunks))
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        click.echo(
            f"{row['form']}, level {row['level']}: ratio {row['ratio']:.2f}, compresses {row['compress_mib_s']} and"
            f" decompresses {row['decompress_mib_s']} MiB/s a core; pays below {row['pays_below_mib_s']} MiB/s a core"
        )
