"""A chunk is an Arrow file that any Arrow tool opens, byte for byte the one expected."""

from pathlib import Path

import numpy
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import PoolError
from app.tiers.curvine import chunkfile
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.layout import Layout, Part
from app.tiers.curvine.outcomes import Put
from app.tiers.curvine.pool import Pool
from tests.tiers.curvine.conftest import chunk_of, family_of


def test_the_four_line_example(pool: Pool) -> None:
    values = numpy.arange(2 * 3 * 4 * 5, dtype=numpy.float32).reshape(2, 3, 4, 5)
    layout = Layout((Part("float32", values.shape),))
    chunk = family_of(0, layout=layout.text).chunk(b"hash", salt='quote " and é')
    assert pool.put(chunk, memoryview(values.tobytes()), Landing()) is Put.STORED
    with pa.memory_map(pool.path_of(chunk)) as source:
        table = pa.ipc.open_file(source).read_all()
    kv = table.column("kv").chunk(0).to_numpy_ndarray()[0]
    assert kv.dtype == values.dtype
    assert (kv == values).all()
    assert table.schema.metadata[b"tierserve.format"] == b"1"
    assert chunkfile.read_identity(pool.path_of(chunk)) == chunk


@pytest.mark.parametrize(
    ("dtype", "arrow"), [("float16", pa.float16()), ("bfloat16", pa.uint16()), ("float8_e4m3fn", pa.uint8())]
)
def test_element_types(pool: Pool, dtype: str, arrow: "pa.DataType") -> None:
    layout = Layout((Part(dtype, (2, 8, 4)),))
    chunk = family_of(0, layout=layout.text).chunk(b"hash")
    payload = bytes(range(layout.nbytes or 0))
    assert pool.put(chunk, memoryview(payload), Landing()) is Put.STORED
    with pa.OSFile(pool.path_of(chunk)) as source:
        column = pa.ipc.open_file(source).get_batch(0).column(0)
    assert column.type.value_type == arrow
    assert list(column.type.shape) == [2, 8, 4]


def test_several_tensors_and_shortened_payloads_are_rows_of_bytes(pool: Pool) -> None:
    two = Layout((Part("float16", (4,)), Part("float32", (2,))))
    assert Layout.parse(two.text) == two
    assert two.nbytes == 16
    for size in (16, 7):
        chunk = family_of(0, layout=two.text).chunk(bytes([size]))
        assert pool.put(chunk, memoryview(bytes(size)), Landing()) is Put.STORED
        assert chunkfile.inspect(pool.path_of(chunk)).payload_bytes == size


@pytest.mark.parametrize("text", ["", "float16", "float16[]", "float16[2", "a[1];", "x[-1]"])
def test_layouts_that_are_none(text: str) -> None:
    with pytest.raises(PoolError):
        Layout.parse(text)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 5000), salt=st.text(st.characters(exclude_categories=["Cs"]), max_size=128))
def test_a_frame_has_the_size_that_it_says(size: int, salt: str) -> None:
    frame = chunkfile.frame(family_of(size).chunk(b"h", salt=salt), size)
    assert len(frame.head()) == frame.head_bytes
    assert len(frame.tail("0" * 32)) == frame.tail_bytes
    assert frame.head_bytes % 4096 == 0
    whole = frame.head() + bytes(size) + frame.tail("f" * 32)
    assert len(whole) == frame.size
    assert pa.ipc.open_file(pa.py_buffer(whole)).num_record_batches == 1


@pytest.mark.parametrize("size", [1, 8, 64, 5000, 100_000])
def test_the_frame_is_what_pyarrow_itself_would_write(size: int) -> None:
    frame = chunkfile.frame(family_of(size).chunk(b"h"), size)
    checksum = "ab" * 16
    whole = frame.head() + bytes(size) + frame.tail(checksum)
    reader = pa.ipc.open_file(pa.py_buffer(whole))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, reader.schema) as writer:
        writer.write_batch(reader.get_batch(0))
    written = sink.getvalue().to_pybytes()
    # The schema at the head keeps an empty checksum, for it is written before the payload is known.
    assert written.replace(checksum.encode(), b"0" * 32) == whole.replace(checksum.encode(), b"0" * 32)


def test_inspect_refuses_what_is_no_chunk(pool: Pool, tmp_path: Path) -> None:
    chunk = chunk_of(1, 4096)
    pool.put(chunk, memoryview(bytes(4096)), Landing())
    whole = Path(pool.path_of(chunk)).read_bytes()
    other = tmp_path / "other.arrow"
    for broken in (b"", b"ARROW1", whole[:-1], whole + b"x", whole[:5000] + b"\x01" + whole[5001:]):
        other.write_bytes(broken)
        with pytest.raises(PoolError):
            chunkfile.inspect(str(other))
    plain = pa.schema([pa.field("kv", pa.uint8())])
    with pa.ipc.new_file(str(other), plain):
        pass
    with pytest.raises(PoolError):
        chunkfile.read_identity(str(other))
