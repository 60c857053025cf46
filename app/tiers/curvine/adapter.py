"""LMCache's L2 adapter on top of the pool (lmcache 0.5.6; beside it only adapter_config.py, listing.py and prefetch.py
import that).

What LMCache's controllers assume and their interface does not say: every task must complete, for there is no timeout
above us; a result is published before its descriptor is notified, or the controller misses it; a query that raises
makes the controller free buffers that are still being written. So nothing here raises after a submit, and every
completion comes from the service, which answers for a hung mount too.

The plugin JSON works as it is:

    {"type": "plugin", "module_path": "app.tiers.curvine.adapter", "class_name": "CurvineL2Adapter",
     "adapter_params": {"path": "DIR"}}

Under its own name (`register`, then `{"type": "curvine", "path": "DIR"}`) metrics and events carry that name.
"""

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import compress
from pathlib import Path
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import KeyListPage, MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import (
    get_registered_l2_adapter_types,
    register_l2_adapter_type,
)
from lmcache.v1.distributed.l2_adapters.factory import register_l2_adapter_factory
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import create_event_notifier

from app.tiers.curvine import prefetch
from app.tiers.curvine.adapter_config import CurvineL2AdapterConfig as CurvineL2AdapterConfig
from app.tiers.curvine.credit import Credit
from app.tiers.curvine.housekeeper import Housekeeper
from app.tiers.curvine.identity import ChunkId
from app.tiers.curvine.known import KnownKeys
from app.tiers.curvine.listing import Entry, after_cursor, batches, page
from app.tiers.curvine.naming import NamedTask, Names
from app.tiers.curvine.outcomes import Put
from app.tiers.curvine.pool import Pool
from app.tiers.curvine.service import PoolService
from app.tiers.curvine.usage import Usage, name_of

logger = logging.getLogger(__name__)

TYPE_NAME = "curvine"
_STORED = frozenset({Put.STORED, Put.EXISTS})


class CurvineL2Adapter(L2AdapterInterface):
    """Called by LMCache's store, prefetch and eviction threads and by its HTTP threads, at any time."""

    def __init__(self, config: "CurvineL2AdapterConfig | dict[str, Any]", l1_memory_desc: object = None) -> None:
        """Raises:
        ValueError: the options are wrong. PoolError: the path cannot be a pool.
        """
        if isinstance(config, dict):
            config = CurvineL2AdapterConfig.from_dict(config)
        self._settings = settings = config.settings
        super().__init__(max_capacity_bytes=settings.capacity_bytes)
        usage, credit = Usage(settings.prefill_tokens_per_s), Credit(limited=settings.capacity_bytes > 0)
        pool = Pool(settings.path, credit=credit)
        pool.open()
        self._usage = usage
        self._known = KnownKeys[ObjectKey]()
        self._service = PoolService(pool, settings.limits())
        self._names = Names(settings)
        self._store_event = create_event_notifier()
        self._lookup_event = create_event_notifier()
        self._load_event = create_event_notifier()
        self._lock = threading.Lock()
        self._tasks = itertools.count()
        self._stores: dict[int, L2StoreResult] = {}
        self._lookups: dict[int, Bitmap] = {}
        self._loads: dict[int, Bitmap] = {}
        self._locked: dict[ObjectKey, int] = {}
        self._closed = False
        self._housekeeper = Housekeeper(
            pool, settings, usage, credit, held=self._held, on_evicted=self._evicted, on_start=self._recover
        )
        self._housekeeper.start()

    # -- descriptors ----------------------------------------------------------------------------------------------

    def get_store_event_fd(self) -> int:
        return int(self._store_event.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._lookup_event.fileno())

    def get_load_event_fd(self) -> int:
        return int(self._load_event.fileno())

    def _notify(self, event: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile: nobody polls any more
            event.notify()

    # -- store ----------------------------------------------------------------------------------------------------

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        """Does not block; the objects are read until the task completes, and not a moment longer."""
        task = next(self._tasks)
        named = NamedTask(self._names, keys, objects)

        def done(outcomes: list[Put]) -> None:
            named.release()
            there = [index for index, outcome in enumerate(outcomes) if outcome in _STORED]
            written = self._account(keys, named, there, outcomes)
            if there:
                self._tell(self._notify_keys_stored, [keys[index] for index in there], written)
            with self._lock:
                self._stores[task] = L2StoreResult(len(there) == len(keys), sum(written))
            self._notify(self._store_event)

        self._service.store(named, done)
        return task

    def _account(
        self, keys: Sequence[ObjectKey], named: NamedTask, there: Sequence[int], outcomes: Sequence[Put]
    ) -> list[int]:
        """The bytes that each stored key adds to what this server knows of the pool."""
        chunks = [named.chunk(index) for index in there]
        sizes = [named.file_bytes(index) for index in there]
        new = self._known.add_many(map(name_of, chunks), [keys[index] for index in there], sizes)
        ours = [outcomes[index] is Put.STORED for index in there]
        self._usage.stored(list(compress(chunks, ours)), list(compress(sizes, ours)))
        # What was there is not ours, but new to our listeners' byte counts if nobody has told us of it.
        return [size if is_ours or is_new else 0 for size, is_ours, is_new in zip(sizes, ours, new, strict=True)]

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        with self._lock:
            completed, self._stores = self._stores, {}
        return completed

    # -- lookup ---------------------------------------------------------------------------------------------------

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]
    ) -> int:
        """Does not block. A key whose layout nobody knows is a miss."""
        task = next(self._tasks)
        positions, chunks = self._names.of_lookup(keys, group_layout_descs)

        def done(found: list[bool]) -> None:
            hits = set(compress(positions, found))
            bitmap = Bitmap(len(keys))
            bitmap.batched_set(list(hits))
            with self._lock:
                for position in hits:
                    self._locked[keys[position]] = self._locked.get(keys[position], 0) + 1
                self._lookups[task] = bitmap
            self._notify(self._lookup_event)
            self._usage.looked_up(chunks)  # the request does not wait for it

        self._service.lookup(chunks, [None] * len(chunks), done)
        return task

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._lookups.pop(task_id, None)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        with self._lock:
            for key in keys:
                count = self._locked.get(key, 0)
                if count > 1:
                    self._locked[key] = count - 1
                else:
                    self._locked.pop(key, None)

    # -- load -----------------------------------------------------------------------------------------------------

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        """Does not block; the objects are written until the task completes, and not a moment longer."""
        task = next(self._tasks)
        # Names and views are made by the workers, while others already read: 64 of them cost a twentieth of their load.
        named = NamedTask(self._names, keys, objects)

        def done(loaded: list[bool]) -> None:
            hits = list(compress(range(len(keys)), loaded))
            bitmap = Bitmap(len(keys))
            bitmap.batched_set(hits)
            named.release()
            with self._lock:
                self._loads[task] = bitmap
            self._notify(self._load_event)
            if hits:  # the request does not wait for this
                self._usage.loaded([named.chunk(index) for index in hits])
                self._tell(self._notify_keys_accessed, [keys[index] for index in hits])

        self._service.load(named, done)
        return task

    def query_load_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._loads.pop(task_id, None)

    # -- delete, list, status -------------------------------------------------------------------------------------

    def delete(self, keys: list[ObjectKey]) -> None:
        """Blocks at most for the drop deadline: LMCache's eviction thread holds a lock of its own meanwhile. Locked
        keys stay. Any layout of the key's model that this process or the pool's manifests know is deleted."""
        with self._lock:
            free = [key for key in keys if key not in self._locked]
        owners: list[ObjectKey] = []
        chunks: list[ChunkId] = []
        for key in free:
            for chunk in self._names.of_any_layout(key):
                owners.append(key)
                chunks.append(chunk)
        dropped = self._service.drop(chunks)
        gone = [(key, removed.file_bytes) for key, removed in zip(owners, dropped, strict=True) if removed is not None]
        for chunk, removed in zip(chunks, dropped, strict=True):
            if removed is not None:
                self._known.pop(name_of(chunk))
                self._usage.dropped(name_of(chunk))
        if gone:
            self._tell(self._notify_keys_deleted, [key for key, _ in gone], [size for _, size in gone])

    def _held(self) -> set[str]:
        """On the housekeeper: the names of locked keys, which must not be evicted."""
        with self._lock:
            locked = list(self._locked)
        return {name_of(chunk) for key in locked for chunk in self._names.of_any_layout(key)}

    def _evicted(self, names: list[str]) -> None:
        """On the housekeeper: somebody's janitor removed these."""
        pairs = [pair for pair in map(self._known.pop, names) if pair is not None]
        if pairs:
            self._tell(self._notify_keys_deleted, [key for key, _ in pairs], [size for _, size in pairs])

    def _recover(self) -> None:
        """On a thread of its own, once: tells LMCache's listeners what earlier runs and other servers left on disk."""
        pool = self._service.pool
        self._names.learn(pool.families())
        if not self._settings.recover:
            return
        for keys, sizes in batches(pool, self._is_news):
            self._tell(self._notify_keys_stored, keys, sizes)

    def _is_news(self, entry: Entry) -> bool | None:
        if self._closed or self._known.full:
            return None
        return self._known.add(entry.name, entry.key, entry.file_bytes)

    def known_keys(self) -> list[ObjectKey]:
        """What this server knows to be in the pool: what it stored, and what it found there at its start."""
        return self._known.keys()

    def get_usage(self) -> AdapterUsage:
        """The whole pool's bytes, as its janitor last said; by salt what this server knows of."""
        usage = super().get_usage()
        status = self._housekeeper.status()
        if status.used_bytes is None:
            return usage
        return replace(usage, total_bytes_used=status.used_bytes, total_capacity_bytes=status.capacity_bytes)

    def list_l2_keys(
        self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None
    ) -> KeyListPage:
        """One page of what is on disk now, in the order of the file names. Blocks, at most for some seconds.

        Raises:
            ValueError: bad page size or cursor.
        """
        after = after_cursor(page_size, cursor)
        deadline = self._settings.drop_deadline_s + page_size * 0.01
        pool, nothing = self._service.pool, KeyListPage(entries=(), next_page_token=None)
        return self._service.ask(lambda: page(pool, model_name, page_size, after), nothing, deadline)

    def path_of(self, key: ObjectKey, layout: MemoryLayoutDesc) -> Path:
        """Where a key's chunk is, or would be. For tools and tests."""
        _, chunks = self._names.of_lookup([key], {key.object_group_id: layout})
        return Path(self._service.pool.path_of(chunks[0]))

    def report_status(self) -> dict[str, Any]:
        """Plain values; does not touch the file system. Healthy means that the breaker is closed."""
        status = self._service.status()
        with self._lock:
            locked = len(self._locked)
        return {
            "is_healthy": self._service.breaker.allows() and not self._closed,
            "type": TYPE_NAME,
            "path": self._settings.path,
            "locked_keys": locked,
            "housekeeping": asdict(self._housekeeper.status()),
            **status,
        }

    def close(self) -> None:
        """Completes what is waiting, stops the threads that can be stopped, closes the descriptors. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._housekeeper.close()
        self._service.close()
        for event in (self._store_event, self._lookup_event, self._load_event):
            event.close()

    def _tell(self, tell: Callable[..., None], *arguments: object) -> None:
        """LMCache's notifications run other people's listeners: one that raises must not lose a completion."""
        try:
            tell(*arguments)
        except Exception:
            logger.exception("a listener of the pool failed")

    def check_integrity(self) -> None:
        """Raises AssertionError if a part contradicts itself."""
        self._service.check_integrity()
        with self._lock:
            assert all(count > 0 for count in self._locked.values()), self._locked


def register() -> None:
    """Makes `{"type": "curvine"}` and the prefetch policy known to LMCache. Idempotent; call it before LMCache parses
    its arguments."""
    prefetch.register()
    if TYPE_NAME in get_registered_l2_adapter_types():
        return
    register_l2_adapter_type(TYPE_NAME, CurvineL2AdapterConfig)
    register_l2_adapter_factory(TYPE_NAME, CurvineL2Adapter)
