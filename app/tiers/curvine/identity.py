"""Which bytes a chunk is: the names under which the pool keeps it.

A chunk's identity has two halves. A `Family` is what all chunks of one build of one model share; it owns a directory
and a readable manifest in it. A `ChunkId` adds what differs from chunk to chunk. Both are hashed into the path, so two
builds that differ in anything that matters can never meet; the readable form is in the manifest and, complete, in
every file.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from app.errors import PoolError

FORMAT_VERSION = 1
_NAME_LIMIT = 100
_DIGEST_BYTES = 16


def escape(name: str) -> str:
    """A name as one path component, different for different names.

    Percent-encoding keeps letters, digits and `_.-~`, and escapes everything else, `%` included, so it can be undone; a
    leading dot is escaped too, because `.` and `..` are not names.
    """
    escaped = quote(name, safe="")
    return "%2E" + escaped[1:] if escaped.startswith(".") else escaped


@dataclass(frozen=True, slots=True)
class Family:
    """What all chunks of one build of one model share. Build it with `Family.of`, which computes the digest once."""

    model: str
    revision: str
    dtype: str
    layout: str
    chunk_tokens: int
    hash_algorithm: str
    encoding: str
    digest: bytes
    directory: str

    @classmethod
    def of(
        cls,
        *,
        model: str,
        layout: str,
        revision: str = "",
        dtype: str = "",
        chunk_tokens: int = 256,
        hash_algorithm: str = "blake3",
        encoding: str = "",
    ) -> "Family":
        """Args:
        model: the served model's id.
        layout: shapes and dtypes of one chunk's KV, as `Layout.text` spells it.
        revision: of the weights; empty if unknown.
        dtype: of the KV cache; empty means whatever `layout` says.
        chunk_tokens: tokens in a chunk.
        hash_algorithm: that made the chunk hashes.
        encoding: fingerprint of the file encoding, so that writers whose files differ in a byte do not share a name.
        """
        fields = {
            "chunk_tokens": chunk_tokens,
            "dtype": dtype,
            "encoding": encoding,
            "format": FORMAT_VERSION,
            "hash_algorithm": hash_algorithm,
            "layout": layout,
            "model": model,
            "revision": revision,
        }
        digest = hashlib.blake2b(_canonical(fields), digest_size=_DIGEST_BYTES).digest()
        return cls(
            model=model,
            revision=revision,
            dtype=dtype,
            layout=layout,
            chunk_tokens=chunk_tokens,
            hash_algorithm=hash_algorithm,
            encoding=encoding,
            digest=digest,
            directory=f"{escape(model)[:_NAME_LIMIT]}.{digest.hex()}",
        )

    def manifest(self) -> dict[str, str | int]:
        """The readable form: exactly the hashed fields."""
        return {
            "chunk_tokens": self.chunk_tokens,
            "dtype": self.dtype,
            "encoding": self.encoding,
            "format": FORMAT_VERSION,
            "hash_algorithm": self.hash_algorithm,
            "layout": self.layout,
            "model": self.model,
            "revision": self.revision,
        }

    @classmethod
    def from_manifest(cls, fields: Mapping[str, object]) -> "Family":
        """The inverse of `manifest`.

        Raises:
            PoolError: a field is missing or has the wrong type, or the format version is another one.
        """
        try:
            if fields["format"] != FORMAT_VERSION:
                raise PoolError(f"manifest has format {fields['format']!r}; this version reads {FORMAT_VERSION}")
            texts = {
                name: fields[name] for name in ("model", "layout", "revision", "dtype", "hash_algorithm", "encoding")
            }
            tokens = fields["chunk_tokens"]
        except KeyError as missing:
            raise PoolError(f"manifest lacks {missing}") from None
        if not isinstance(tokens, int) or not all(isinstance(text, str) for text in texts.values()):
            raise PoolError("manifest has a field of the wrong type")
        return cls.of(chunk_tokens=tokens, **{name: str(text) for name, text in texts.items()})

    def chunk(self, chunk_hash: bytes, *, kv_rank: int = 0, group: int = 0, salt: str = "") -> "ChunkId":
        """The identity of one chunk. `kv_rank` packs the world size in its top byte, as LMCache's ObjectKey does."""
        head = b"%d|%d|%s|" % (kv_rank, group, chunk_hash.hex().encode())
        digest = hashlib.blake2b(head + salt.encode(), digest_size=_DIGEST_BYTES, key=self.digest).hexdigest()
        return ChunkId(self, chunk_hash, kv_rank, group, salt, digest)


class ChunkId(NamedTuple):  # not a frozen dataclass, which takes three times as long to make: one for every lookup
    """One chunk. `digest` names its file; the other fields are what a reader compares with the file's own."""

    family: Family
    chunk_hash: bytes
    kv_rank: int
    group: int
    salt: str
    digest: str

    @property
    def relative(self) -> str:
        """The path below the pool's `chunks` directory; 256 directories a family keep each one small."""
        return f"{self.family.directory}/{self.digest[:2]}/{self.digest}.arrow"

    def fields(self) -> dict[str, str | int]:
        """The full identity, as it is written into the file's metadata."""
        return {
            **self.family.manifest(),
            "chunk_hash": self.chunk_hash.hex(),
            "group": self.group,
            "kv_rank": self.kv_rank,
            "kv_world": self.kv_rank >> 24,
            "salt": self.salt,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> "ChunkId":
        """The inverse of `fields`.

        Raises:
            PoolError: a field is missing or malformed.
        """
        family = Family.from_manifest(fields)
        chunk_hash, kv_rank, group, salt = (fields.get(name) for name in ("chunk_hash", "kv_rank", "group", "salt"))
        if not (isinstance(chunk_hash, str) and isinstance(salt, str)):
            raise PoolError("identity lacks chunk_hash or salt")
        if not (isinstance(kv_rank, int) and isinstance(group, int)):
            raise PoolError("identity lacks kv_rank or group")
        try:
            return family.chunk(bytes.fromhex(chunk_hash), kv_rank=kv_rank, group=group, salt=salt)
        except ValueError:
            raise PoolError("identity has a chunk_hash that is not hexadecimal") from None


def _canonical(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
