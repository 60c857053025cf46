"""What lies in the pool, in LMCache's words. Everything here blocks on the file system."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lmcache.v1.distributed.api import KeyEntry, KeyListPage, ObjectKey

from app.errors import PoolError
from app.tiers.curvine import chunkfile
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.pool import Pool

_CURSOR = re.compile(r"^[^/]+/[0-9a-f]{32}$")
_BATCH = 256


class Entry(NamedTuple):
    """A file whose identity could be read. `name`: family and digest, as the pool's messages spell it."""

    name: str
    key: ObjectKey
    file_bytes: int


def entries(pool: Pool, after: str = "") -> Iterator[Entry]:
    """In the order of the names, those that come after one."""
    for found in pool.scan(after):
        try:
            chunk = chunkfile.read_identity(pool.path_of_file(found.family, found.digest))
        except (PoolError, OSError, ValueError):
            continue
        yield Entry(f"{found.family}/{found.digest}", key_of(chunk), found.file_bytes)


def batches(pool: Pool, is_news: Callable[[Entry], bool | None]) -> Iterator[tuple[list[ObjectKey], list[int]]]:
    """Keys and sizes of the files that are news, some hundred at a time. `is_news` answers None to end it."""
    keys: list[ObjectKey] = []
    sizes: list[int] = []
    for entry in entries(pool):
        news = is_news(entry)
        if news is None:
            break
        if news:
            keys.append(entry.key)
            sizes.append(entry.file_bytes)
        if len(keys) == _BATCH:
            yield keys, sizes
            keys, sizes = [], []
    if keys:
        yield keys, sizes


def after_cursor(page_size: int, cursor: str | None) -> str:
    """What `page` is to start after.

    Raises:
        ValueError: bad page size or cursor.
    """
    if page_size <= 0:
        raise ValueError(f"page_size must be positive, not {page_size}")
    if cursor is not None and not _CURSOR.match(cursor):
        raise ValueError("malformed cursor")
    return cursor or ""


def page(pool: Pool, model_name: str | None, page_size: int, after: str) -> KeyListPage:
    """Up to so many of a model's keys (None: of all models'), with a cursor if there may be more."""
    found: list[KeyEntry] = []
    for entry in entries(pool, after):
        if model_name in (None, entry.key.model_name):
            found.append(KeyEntry(key=entry.key.to_encoded_object_key(), size_bytes=entry.file_bytes))
        if len(found) == page_size:
            return KeyListPage(entries=tuple(found), next_page_token=entry.name)
    return KeyListPage(entries=tuple(found), next_page_token=None)


def key_of(chunk: ChunkId) -> ObjectKey:
    return ObjectKey(
        chunk_hash=chunk.chunk_hash,
        model_name=chunk.family.model,
        kv_rank=chunk.kv_rank,
        object_group_id=chunk.group,
        cache_salt=chunk.salt,
    )
