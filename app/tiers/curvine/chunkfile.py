"""One KV chunk as one Arrow IPC file.

    import pyarrow as pa
    with pa.memory_map(path) as source:
        table = pa.ipc.open_file(source).read_all()
    kv = table.column("kv").chunk(0).to_numpy_ndarray()[0]     # zero-copy; identity: table.schema.metadata

    offset 0      head     magic, schema, record-batch header                 4 KiB
                  payload  the chunk's bytes, page aligned                    written from and read into the caller's
                  memory tail     padding, end mark, footer with the schema again    about 4 KiB

Arrow's reader takes the schema from the footer. That is where the checksum is, because it is known only after the
payload has been hashed on its way out, and a shared mount wants its writes in order; the same field at the head stays
zero.

Everything but the payload is a function of identity, layout and checksum. A reader therefore does not parse: it builds
the head and tail that it expects and compares bytes. A flipped bit anywhere, an identity that is not exactly the one
asked for, a file that is a byte too long: all the same answer. The bytes come from pyarrow, once per layout, and are
then patched.
"""

import functools
import hashlib
import io
import json
import mmap
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import xxhash

from app.errors import PoolError
from app.tiers.curvine.identity import ChunkId, Family
from app.tiers.curvine.layout import Layout

COLUMN: Final = "kv"
KEY_FORMAT: Final = b"tierserve.format"
KEY_IDENTITY: Final = b"tierserve.identity"
KEY_CHECKSUM: Final = b"tierserve.checksum"
KEY_PAD: Final = b"tierserve.pad"
CHECKSUM_HEX: Final = 32
# The identity is padded with spaces to a multiple of this, so that a few templates serve all salts.
_IDENTITY_STEP: Final = 128
_IDENTITY_MARK: Final = b"\x01"
_CHECKSUM_MARK: Final = b"\x02"
_PAGE: Final = 4096
_NO_CHECKSUM: Final = b"0" * CHECKSUM_HEX


@dataclass(frozen=True, slots=True)
class _Patch:
    """Bytes with holes: `pieces[0] hole pieces[1] hole ...`; `holes` names what goes where."""

    pieces: tuple[bytes, ...]
    holes: tuple[bool, ...]  # True: identity, False: checksum
    identity_at: int
    checksum_at: int

    def fill(self, identity: bytes, checksum: bytes) -> bytes:
        out = [self.pieces[0]]
        for is_identity, piece in zip(self.holes, self.pieces[1:], strict=True):
            out += (identity if is_identity else checksum, piece)
        return b"".join(out)


@dataclass(frozen=True, slots=True)
class _Template:
    head: _Patch
    tail: _Patch
    head_bytes: int
    tail_bytes: int


@dataclass(frozen=True, slots=True)
class Frame:
    """What surrounds one chunk's payload on disk."""

    chunk: ChunkId
    payload_bytes: int
    identity: bytes
    template: _Template

    @property
    def size(self) -> int:
        """Of the whole file."""
        return self.template.head_bytes + self.payload_bytes + self.template.tail_bytes

    @property
    def head_bytes(self) -> int:
        return self.template.head_bytes

    @property
    def tail_bytes(self) -> int:
        return self.template.tail_bytes

    def head(self) -> bytes:
        return self.template.head.fill(self.identity, _NO_CHECKSUM)

    def tail(self, checksum_hex: str) -> bytes:
        return self.template.tail.fill(self.identity, checksum_hex.encode())

    def mould(self) -> "Mould":
        head, tail = self.template.head, self.template.tail
        at = len(_common(self.chunk.family))
        return Mould(
            head=self.head(),
            tail=tail.fill(self.identity, _NO_CHECKSUM),
            stamp_in_identity=at,
            stamp_in_head=head.identity_at + at,
            stamp_in_tail=tail.identity_at + at,
            checksum_in_tail=tail.checksum_at,
            file_bytes=self.size,
        )


@dataclass(frozen=True, slots=True)
class Mould:
    """A chunk's head and tail, and where in them its stamp, which is the part of the identity that is not its family's,
    and the `CHECKSUM_HEX` digits are. Chunks of a family with payloads and identities of the same lengths, as those of
    a request, have one mould."""

    head: bytes
    tail: bytes
    stamp_in_identity: int
    stamp_in_head: int
    stamp_in_tail: int
    checksum_in_tail: int
    file_bytes: int


def frame(chunk: ChunkId, payload_bytes: int) -> Frame:
    """The frame of `chunk` with a payload of that size. A few microseconds after the first call for a layout.

    Raises:
        PoolError: the family's layout is not one.
    """
    identity = identity_of(chunk)
    return Frame(chunk, payload_bytes, identity, _template(chunk.family.layout, payload_bytes, len(identity)))


def file_bytes(chunk: ChunkId, payload_bytes: int, identity: bytes | None = None) -> int:
    """The size of its file; quicker if its `identity_of` is known. Raises PoolError as `frame`."""
    identity = identity or identity_of(chunk)
    template = _template(chunk.family.layout, payload_bytes, len(identity))
    return template.head_bytes + payload_bytes + template.tail_bytes


@functools.lru_cache(maxsize=256)
def _common(family: Family) -> str:
    """What the identities of a family begin with: ASCII, as JSON is."""
    return json.dumps(family.manifest(), sort_keys=True, separators=(",", ":"))[:-1] + ',"chunk_hash":"'


def identity_of(chunk: ChunkId) -> bytes:
    """The identity as JSON, as a file has it twice."""
    # Written by hand: json.dumps of eleven fields costs more than everything else that a lookup does.
    salt = json.dumps(chunk.salt) if chunk.salt else '""'
    text = (
        f'{_common(chunk.family)}{chunk.chunk_hash.hex()}","group":{chunk.group},"kv_rank":{chunk.kv_rank},'
        f'"kv_world":{chunk.kv_rank >> 24},"salt":{salt}}}'
    ).encode()
    return text.ljust(-(-len(text) // _IDENTITY_STEP) * _IDENTITY_STEP)


@functools.lru_cache(maxsize=256)
def _template(layout: str, payload_bytes: int, identity_bytes: int) -> _Template:
    """Lets pyarrow write one file with an empty payload, and cuts it at the payload and at the two variable fields.

    A metadata field of spaces makes the head a whole number of pages: copying between a page of the cache and the
    caller's memory at different offsets in the page costs a third of the speed of a load (6.8 instead of 12.3 GB/s,
    two cores).
    """
    kind = Layout.parse(layout).tensor_type(payload_bytes)
    head, tail = _written(kind, payload_bytes, identity_bytes, 0)
    head, tail = _written(kind, payload_bytes, identity_bytes, -len(head) % _PAGE)
    assert len(head) % _PAGE == 0, len(head)
    return _Template(_cut(head, identity_bytes), _cut(tail, identity_bytes), len(head), len(tail))


def _written(kind: "pa.FixedShapeTensorType", payload_bytes: int, identity_bytes: int, pad: int) -> tuple[bytes, bytes]:
    """What pyarrow puts before and after an empty payload, marks in place of identity and checksum."""
    metadata = {
        KEY_FORMAT: b"1",
        KEY_IDENTITY: _IDENTITY_MARK * identity_bytes,
        KEY_CHECKSUM: _CHECKSUM_MARK * CHECKSUM_HEX,
        KEY_PAD: b" " * pad,
    }
    schema = pa.schema([pa.field(COLUMN, kind, nullable=False)], metadata=metadata)
    # Pages that are never touched: bytes(n) may come from the heap and be resident, once for each worker.
    zeros = mmap.mmap(-1, payload_bytes) if payload_bytes else b""
    values = pa.Array.from_buffers(
        kind.storage_type.value_type,
        payload_bytes * 8 // kind.value_type.bit_width,
        [None, pa.py_buffer(zeros)],
    )
    storage = pa.FixedSizeListArray.from_arrays(values, kind.storage_type.list_size)
    sink = _Around()
    with pa.PythonFile(sink, mode="w") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.record_batch([pa.ExtensionArray.from_storage(kind, storage)], schema=schema))
    return sink.cut()


class _Around(io.RawIOBase):
    """Keeps what is written around a payload, not the payload: a template costs no copy of a chunk. pyarrow hands the
    bodies of record batches over as Buffers and everything else as bytes; a test compares the result with a file."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[list[bytes]] = [[]]

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if isinstance(data, pa.Buffer):
            self._parts.append([])
            return int(data.size)
        self._parts[-1].append(bytes(data))
        return len(data)

    def cut(self) -> tuple[bytes, bytes]:
        """What came before and after the payload.

        Raises:
            PoolError: this pyarrow writes in another way.
        """
        if len(self._parts) != 2:
            raise PoolError(f"pyarrow {pa.__version__} wrote {len(self._parts) - 1} buffers where one was expected")
        return b"".join(self._parts[0]), b"".join(self._parts[1])


def _cut(blob: bytes, identity_bytes: int) -> _Patch:
    marks = []
    for mark, is_identity in ((_IDENTITY_MARK * identity_bytes, True), (_CHECKSUM_MARK * CHECKSUM_HEX, False)):
        if blob.count(mark) != 1:
            raise PoolError(
                f"pyarrow {pa.__version__} wrote the metadata {blob.count(mark)} times where one was expected"
            )
        marks.append((blob.index(mark), len(mark), is_identity))
    marks.sort()
    pieces, holes, at = [], [], 0
    for start, length, is_identity in marks:
        pieces.append(blob[at:start])
        holes.append(is_identity)
        at = start + length
    pieces.append(blob[at:])
    return _Patch(
        tuple(pieces),
        tuple(holes),
        identity_at=blob.index(_IDENTITY_MARK * identity_bytes),
        checksum_at=blob.index(_CHECKSUM_MARK * CHECKSUM_HEX),
    )


@functools.cache
def encoding_fingerprint() -> str:
    """Short name of the exact bytes that this pyarrow puts around a payload: part of every family, so that a version
    that writes them differently reads and writes its own names instead of calling the other's files damaged."""
    template = _template("uint8[64]", 64, _IDENTITY_STEP)
    digest = hashlib.blake2b(digest_size=4)
    for piece in template.head.pieces + template.tail.pieces:
        digest.update(piece)
    return f"arrow-{digest.hexdigest()}"


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a file says of itself, payload verified."""

    chunk: ChunkId
    payload_bytes: int
    file_bytes: int


def read_identity(path: str) -> ChunkId:
    """The identity in a file's footer, without its payload. For listings; blocks on the file system.

    Raises:
        PoolError: not a chunk file. OSError: it cannot be read.
    """
    with pa.OSFile(path) as source:
        return _identity_of(_open(source).schema, path)


def inspect(path: str) -> Inspection:
    """Reads and verifies a whole file through Arrow's reader, which is not the code that serves. Blocks.

    Raises:
        PoolError: it is damaged, or not a chunk file. OSError: it cannot be read.
    """
    with pa.OSFile(path) as source:
        file_bytes = source.size()
        reader = _open(source)
        chunk = _identity_of(reader.schema, path)
        try:
            payload = reader.get_batch(0).column(0).storage.values.buffers()[1]
        except (pa.ArrowInvalid, OSError, AttributeError) as error:
            raise PoolError(f"{path}: {error}") from None
        kept = reader.schema.metadata.get(KEY_CHECKSUM, b"").decode(errors="replace")
        if xxhash.xxh3_128_hexdigest(payload) != kept:
            raise PoolError(f"{path}: checksum does not match the payload")
        expected = frame(chunk, payload.size)
        source.seek(0)
        around = source.read(expected.head_bytes)
        source.seek(max(0, file_bytes - expected.tail_bytes))
        if file_bytes != expected.size or around != expected.head() or source.read() != expected.tail(kept):
            raise PoolError(f"{path}: not the bytes this version writes around a payload")
        return Inspection(chunk, payload.size, file_bytes)


def _open(source: "pa.NativeFile") -> "pa.RecordBatchFileReader":
    try:
        return pa.ipc.open_file(source)
    except (pa.ArrowInvalid, OSError) as error:
        raise PoolError(f"not an Arrow file: {error}") from None


def _identity_of(schema: "pa.Schema", path: str) -> ChunkId:
    try:
        fields = json.loads((schema.metadata or {})[KEY_IDENTITY])
    except (KeyError, ValueError):
        raise PoolError(f"{path}: no identity in the metadata") from None
    if not isinstance(fields, dict):
        raise PoolError(f"{path}: the identity is not an object")
    return ChunkId.from_fields(fields)
