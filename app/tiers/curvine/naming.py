"""LMCache's keys and objects as the pool's chunks. Knows their attributes, not their classes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from app.tiers.curvine import chunkfile
from app.tiers.curvine.chunkfile import encoding_fingerprint
from app.tiers.curvine.identity import ChunkId, Family
from app.tiers.curvine.layout import Layout, Part
from app.tiers.curvine.settings import PoolSettings


class Key(Protocol):
    """An ObjectKey."""

    @property
    def chunk_hash(self) -> bytes: ...
    @property
    def model_name(self) -> str: ...
    @property
    def kv_rank(self) -> int: ...
    @property
    def object_group_id(self) -> int: ...
    @property
    def cache_salt(self) -> str: ...


class LayoutDesc(Protocol):
    """A MemoryLayoutDesc."""

    @property
    def shapes(self) -> Sequence[Any]: ...
    @property
    def dtypes(self) -> Sequence[Any]: ...


class Memory(Protocol):
    """A MemoryObj."""

    @property
    def metadata(self) -> Any: ...
    @property
    def byte_array(self) -> Any: ...


class NamedTask:
    """One task's keys and objects as the service wants them: a size, and a chunk and its memory by index.

    Used by several workers at once, each with indices of its own; `release` drops the caller's objects.
    """

    def __init__(self, names: "Names", keys: Sequence[Key], objects: Sequence[Memory]) -> None:
        assert len(keys) == len(objects), (len(keys), len(objects))
        self._names = names
        self._keys = keys
        self._objects: Sequence[Memory] = objects
        self._sizes = [0] * len(keys)
        self._chunks: list[ChunkId | None] = [None] * len(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> tuple[ChunkId, memoryview]:
        obj = self._objects[index]
        chunk = self._chunks[index] = self._names.of_object(self._keys[index], obj)
        view: memoryview = obj.byte_array
        self._sizes[index] = len(view)
        return chunk, view

    def chunk(self, index: int) -> ChunkId:
        """Of a piece that has been handed out."""
        chunk = self._chunks[index]
        assert chunk is not None, index
        return chunk

    def file_bytes(self, index: int) -> int:
        """Of a piece that has been handed out."""
        return chunkfile.file_bytes(self.chunk(index), self._sizes[index])

    def release(self) -> None:
        """Lets go of the caller's objects; the names stay."""
        self._objects = ()


class Names:
    """LMCache's keys as the pool's names.

    An Key does not say the layout of what it names. Objects do, and so do real lookups; `lmcache bench l2`,
    deletions and adapters behind a serde do not, or say another one. For those the layouts count that this process has
    stored or loaded under the model and group. Any thread; grows by one entry a layout.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._encoding = encoding_fingerprint()
        self._families: dict[tuple[str, tuple[Any, ...], tuple[Any, ...]], Family] = {}
        self._used: dict[tuple[str, int], tuple[Family, ...]] = {}
        self._by_model: dict[str, tuple[Family, ...]] = {}

    def of_object(self, key: Key, obj: Memory) -> ChunkId:
        # get_shapes() asserts on an object that was made with one shape only, as `lmcache bench l2` makes them.
        meta = obj.metadata
        shapes = (meta.shape,) if meta.shapes is None else meta.shapes
        dtypes = (meta.dtype,) if meta.dtypes is None else meta.dtypes
        family = self._family(key.model_name, shapes, dtypes)
        place = (key.model_name, key.object_group_id)
        used = self._used.get(place, ())
        if family not in used:
            self._used[place] = (family, *used)
        return _chunk(family, key)

    def of_lookup(self, keys: Sequence[Key], descs: Mapping[int, LayoutDesc]) -> tuple[list[int], list[ChunkId]]:
        """Positions in `keys` and the names to look for; a position may have several."""
        positions: list[int] = []
        chunks: list[ChunkId] = []
        wanted: dict[tuple[str, int], tuple[Family, ...]] = {}
        for position, key in enumerate(keys):
            place = (key.model_name, key.object_group_id)
            families = wanted.get(place)
            if families is None:
                families = wanted[place] = self._lookup_families(place, descs.get(key.object_group_id))
            for family in families:
                positions.append(position)
                chunks.append(_chunk(family, key))
        return positions, chunks

    def _lookup_families(self, place: tuple[str, int], desc: LayoutDesc | None) -> tuple[Family, ...]:
        used = self._used.get(place, ())
        if desc is None or not desc.shapes:
            return used
        family = self._family(place[0], desc.shapes, desc.dtypes)
        return (family, *(other for other in used if other != family))

    def of_any_layout(self, key: Key) -> list[ChunkId]:
        families = [*self._used.get((key.model_name, key.object_group_id), ())]
        families += [family for family in self._by_model.get(key.model_name, ()) if family not in families]
        return [_chunk(family, key) for family in families]

    def learn(self, families: Iterable[Family]) -> None:
        """Takes note of families found on disk, for `of_any_layout`: those that this server's settings could have
        made."""
        for family in families:
            settings = self._settings
            same = (family.revision, family.dtype, family.chunk_tokens, family.hash_algorithm, family.encoding) == (
                settings.revision, settings.dtype, settings.chunk_size, settings.hash_algorithm, self._encoding,
            )  # fmt: skip
            known = self._by_model.get(family.model, ())
            if same and family not in known:
                self._by_model[family.model] = (*known, family)

    def _family(self, model: str, shapes: Sequence[Any], dtypes: Sequence[Any]) -> Family:
        place = (model, tuple(shapes), tuple(dtypes))
        family = self._families.get(place)
        if family is None:
            parts = (
                Part(str(dtype).removeprefix("torch."), tuple(int(n) for n in shape))
                for shape, dtype in zip(shapes, dtypes, strict=True)
            )
            settings = self._settings
            family = self._families[place] = Family.of(
                model=model,
                layout=Layout(tuple(parts)).text,
                revision=settings.revision,
                dtype=settings.dtype,
                chunk_tokens=settings.chunk_size,
                hash_algorithm=settings.hash_algorithm,
                encoding=self._encoding,
            )
        return family


def _chunk(family: Family, key: Key) -> ChunkId:
    return family.chunk(key.chunk_hash, kv_rank=key.kv_rank, group=key.object_group_id, salt=key.cache_salt)
