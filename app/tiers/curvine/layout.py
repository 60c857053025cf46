"""The shape and element type of one chunk's KV, and how Arrow spells it."""

import math
import re
from dataclasses import dataclass

import pyarrow as pa

from app.errors import PoolError

# Arrow has no bfloat16 and no fp8: their bits travel as unsigned integers of the same width, and the layout's text in
# the metadata says what they are.
_ARROW_TYPES: dict[str, tuple[str, int]] = {
    "float64": ("float64", 8),
    "float32": ("float32", 4),
    "float16": ("float16", 2),
    "bfloat16": ("uint16", 2),
    "float8_e4m3fn": ("uint8", 1),
    "float8_e5m2": ("uint8", 1),
    "uint8": ("uint8", 1),
    "int8": ("int8", 1),
    "int16": ("int16", 2),
    "int32": ("int32", 4),
    "int64": ("int64", 8),
}
_PART = re.compile(r"^(\w+)\[(\d+(?:,\d+)*)\]$")


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a chunk."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def element_bytes(self) -> int:
        """The width of an element; 1 for a type this version does not know."""
        return _ARROW_TYPES.get(self.dtype, ("", 1))[1]

    @property
    def nbytes(self) -> int | None:
        """Its bytes, or None for an element type this version does not know."""
        known = _ARROW_TYPES.get(self.dtype)
        return None if known is None else known[1] * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors of one chunk, in memory order. `text` is part of the identity: `bfloat16[2,30,64,192]`."""

    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return ";".join(f"{part.dtype}[{','.join(map(str, part.shape))}]" for part in self.parts)

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """The inverse of `text`.

        Raises:
            PoolError: the text is not a layout.
        """
        parts = []
        for piece in text.split(";"):
            match = _PART.match(piece)
            if match is None:
                raise PoolError(f"layout {text!r} is not of the form dtype[n,n,...]")
            parts.append(Part(match.group(1), tuple(int(n) for n in match.group(2).split(","))))
        return cls(tuple(parts))

    @property
    def nbytes(self) -> int | None:
        """The payload's bytes, or None if an element type is unknown."""
        sizes = [part.nbytes for part in self.parts]
        return None if None in sizes or not sizes else sum(size for size in sizes if size is not None)

    def tensor_type(self, payload_bytes: int) -> "pa.FixedShapeTensorType":
        """The Arrow type of the column. One tensor of a known type keeps its shape; anything else, among them a payload
        that an LMCache serde has shortened, is a flat row of bytes."""
        if len(self.parts) == 1 and self.parts[0].nbytes == payload_bytes:
            part = self.parts[0]
            return pa.fixed_shape_tensor(pa.type_for_alias(_ARROW_TYPES[part.dtype][0]), part.shape)
        return pa.fixed_shape_tensor(pa.uint8(), (payload_bytes,))
