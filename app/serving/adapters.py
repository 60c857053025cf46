"""Which LoRA adapters a model has: the folders of a directory or bucket, asked anew, so that one may be added any time.

Clients name an adapter `MODEL:ADAPTER`, as Ray Serve LLM does. Reading buckets is Ray's (private names of ray 2.60.0,
tests/private_symbols/test_ray.py).
"""

import asyncio
from pathlib import Path
from typing import Protocol

from ray.llm._internal.common.utils.cloud_utils import CloudFileSystem
from ray.llm._internal.serve.utils.lora_serve_utils import CLOUD_OBJECT_MISSING, get_object_from_cloud

from app.adapter_folders import CONFIG, folder_of, folders_in, is_name
from app.settings import LoraSettings


class Adapters(Protocol):
    """Neither method blocks the event loop."""

    async def names(self) -> list[str]: ...

    async def has(self, name: str) -> bool:
        """False for whatever could not be an adapter's name, too."""
        ...


def adapters_of(lora: LoraSettings) -> Adapters:
    return _InBucket(lora.path) if lora.directory is None else _InDirectory(lora.directory)


class _InDirectory:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def names(self) -> list[str]:
        return [folder.name for folder in await asyncio.to_thread(folders_in, self._directory)]

    async def has(self, name: str) -> bool:
        return await asyncio.to_thread(folder_of, self._directory, name) is not None


class _InBucket:
    """What is there is remembered by Ray for an hour, what is missing for half a minute."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    async def names(self) -> list[str]:
        return sorted(filter(is_name, await asyncio.to_thread(CloudFileSystem.list_subfolders, self._uri)))

    async def has(self, name: str) -> bool:
        if not is_name(name):
            return False
        return await get_object_from_cloud(f"{self._uri}/{name}/{CONFIG}") is not CLOUD_OBJECT_MISSING
