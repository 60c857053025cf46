"""Every option of a pool, typed and checked once."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from app.errors import PoolError
from app.tiers.curvine.service import DEFAULT_WORKERS, Limits

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Only `path` is required. Fields of the same name in JSON; unknown ones are refused."""

    path: str
    """The directory, on a laptop any, in a cluster the Curvine mount."""
    revision: str = ""
    """Of the model's weights: chunks of different revisions never meet."""
    dtype: str = ""
    """Of the KV cache, where the layout does not say it."""
    chunk_size: int = 256
    hash_algorithm: str = "blake3"
    capacity_gb: float = 0.0
    """GiB that the pool may hold, whoever writes; 0: as much as the file system has."""
    min_free_fraction: float = 0.05
    """Of the file system, kept free."""
    high_watermark: float = 0.95
    low_watermark: float = 0.85
    retention: Literal["score", "lru"] = "score"
    prefill_tokens_per_s: float = 0.0
    """Of the model served here, as the router's calibration shows it; weighs the models of one pool against each other.
    0: not known, all count as equally fast."""
    janitor: Literal["lease", "off"] = "lease"
    """`lease`: the servers that share the pool agree on one of them by a lease file. `off`: somebody else runs it."""
    tick_s: float = 1.0
    recover: bool = True
    """Announce what is on disk when the server starts."""
    lookup_deadline_s: float = 1.0
    load_deadline_s: float = 5.0
    store_deadline_s: float = 20.0
    drop_deadline_s: float = 2.0
    slow_call_s: float = 2.0
    breaker_failures: int = 3
    breaker_rest_s: float = 1.0
    read_workers: int = DEFAULT_WORKERS
    write_workers: int = DEFAULT_WORKERS
    max_lost_threads: int = 8

    @property
    def capacity_bytes(self) -> int:
        return int(self.capacity_gb * GIB)

    def limits(self) -> Limits:
        return Limits(
            lookup_s=self.lookup_deadline_s,
            load_s=self.load_deadline_s,
            store_s=self.store_deadline_s,
            drop_s=self.drop_deadline_s,
            slow_s=self.slow_call_s,
            failures=self.breaker_failures,
            rest_s=self.breaker_rest_s,
            read_workers=self.read_workers,
            write_workers=self.write_workers,
            max_lost=self.max_lost_threads,
        )

    @classmethod
    def parse(cls, fields: Mapping[str, object]) -> "PoolSettings":
        """Raises:
        PoolError: names the field that is unknown, missing, of the wrong type or out of range.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - set(known))
        if unknown:
            raise PoolError(f"unknown pool option {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        values: dict[str, object] = {}
        for name, value in fields.items():
            values[name] = _checked(name, value, known[name].default)
        if not values.get("path"):
            raise PoolError("a pool needs path: the directory that holds it")
        values["path"] = os.path.expanduser(str(values["path"]))
        settings = cls(**values)  # type: ignore[arg-type]
        settings._check_ranges()
        return settings

    def _check_ranges(self) -> None:
        if not 0 < self.low_watermark <= self.high_watermark <= 1:
            raise PoolError("watermarks: 0 < low_watermark <= high_watermark <= 1 is needed")
        if not 0 <= self.min_free_fraction < 1:
            raise PoolError("min_free_fraction must be at least 0 and below 1")
        if self.retention not in ("score", "lru") or self.janitor not in ("lease", "off"):
            raise PoolError("retention is score or lru; janitor is lease or off")
        for name in ("read_workers", "write_workers", "breaker_failures", "chunk_size"):
            if getattr(self, name) < 1:
                raise PoolError(f"{name} must be at least 1")
        for name in (
            "tick_s",
            *(field.name for field in dataclasses.fields(self) if field.name.endswith("deadline_s")),
        ):
            if getattr(self, name) <= 0:
                raise PoolError(f"{name} must be above 0")
        for name in ("capacity_gb", "max_lost_threads", "prefill_tokens_per_s"):
            if getattr(self, name) < 0:
                raise PoolError(f"{name} cannot be negative")


def _checked(name: str, value: object, default: object) -> object:
    wanted = str if default is dataclasses.MISSING else type(default)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)):
        return value
    raise PoolError(f"pool option {name} must be {wanted.__name__}, not {value!r}")
