"""The adapter's JSON, as LMCache hands it over."""

from typing import Any

from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase

from app.errors import PoolError
from app.tiers.curvine.settings import PoolSettings

# Keys that LMCache itself reads.
_LMCACHE_KEYS = frozenset({"type", "affinity_tag", "shared", "eviction", "persist_enabled", "serde"})


class CurvineL2AdapterConfig(L2AdapterConfigBase):
    """Its typed form. LMCache finds it by its name, in the module that the plugin JSON names."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> "CurvineL2AdapterConfig":
        """Raises:
        ValueError: with what is wrong, as LMCache expects it.
        """
        try:
            return cls(PoolSettings.parse({key: value for key, value in d.items() if key not in _LMCACHE_KEYS}))
        except PoolError as error:
            raise ValueError(str(error)) from error

    @classmethod
    def help(cls) -> str:
        return "Curvine pool: path (required); every other field of PoolSettings has a default. See docs/pool.md."
