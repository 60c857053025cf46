"""Files of a measurement: every request as Parquet, the summary as JSON. What is written can be read back."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from app.bench.load.record import RequestRecord

_TYPES: dict[Any, pa.DataType] = {
    int: pa.int64(),
    int | None: pa.int64(),
    float: pa.float64(),
    float | None: pa.float64(),
    str: pa.string(),
    tuple[float, ...]: pa.list_(pa.float64()),
}
SCHEMA = pa.schema([pa.field(each.name, _TYPES[each.type]) for each in fields(RequestRecord)])


def write_records(path: Path, records: Sequence[RequestRecord], about: Any = None) -> None:
    """Every request as a row; `about` (settings, machine) goes into the file's metadata as JSON."""
    schema = SCHEMA.with_metadata({b"tierserve": json.dumps(plain(about)).encode()}) if about is not None else SCHEMA
    pq.write_table(pa.Table.from_pylist([asdict(record) for record in records], schema), path, compression="zstd")


def read_records(path: Path) -> list[RequestRecord]:
    rows = pq.read_table(path).to_pylist()
    return [RequestRecord(**{**row, "itl_s": tuple(row["itl_s"])}) for row in rows]


def plain(value: Any) -> Any:
    """Dataclasses and tuples as JSON has them; seconds and ratios to the microsecond, which nobody measures below."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value
