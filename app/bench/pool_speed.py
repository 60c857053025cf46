"""How fast the pool can be read here: the ceiling that loads from L2 are compared with."""

import gc
import shutil
import statistics
import tempfile
from pathlib import Path

from app.local.quiet import quiet_lmcache

_ROUNDS = 7


def pool_read_bytes_s(directory: Path, chunks: int, chunk_bytes: int) -> float:
    """Bytes a second at which the pool's own adapter reads `chunks` files from a new pool in `directory`, which is
    removed. Median of rounds with a warm page cache, as files are that were written just before.
    """
    quiet_lmcache()
    import torch
    from lmcache.cli.commands.bench.l2_adapter_bench.data import make_memory_objects, make_object_keys

    from app.bench.pool import Contender

    home = Path(tempfile.mkdtemp(prefix="speed-", dir=directory))
    buffer = torch.randint(0, 256, (chunks * chunk_bytes,), dtype=torch.uint8)
    objects = make_memory_objects(buffer, chunks, chunk_bytes, 0)
    keys = make_object_keys(chunks)
    contender = Contender("ours", home)
    try:
        contender.store(keys, objects)
        return chunks * chunk_bytes / statistics.median(contender.load(keys, objects) for _ in range(_ROUNDS))
    finally:
        del objects
        gc.collect()
        contender.close()
        shutil.rmtree(home, ignore_errors=True)
