"""LoRA adapters for one replica's engine: each copied once, into a directory that is named after what is in it.

Ray Serve LLM's loader (private, ray 2.60.0) reads buckets only, and all models of a machine into one directory, where
adapters of the same name overwrite each other. This one takes directories too. The copy is the replica's own: vLLM
reads an adapter again after it had to make room for others, and what its folder holds by then may be another adapter.
"""

import asyncio
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from fastapi import HTTPException
from ray.llm._internal.common.models import global_id_manager
from ray.llm._internal.serve.core.configs.llm_config import DiskMultiplexConfig
from ray.llm._internal.serve.utils.lora_serve_utils import LoraModelLoader

from app.adapter_folders import CONFIG, folder_of
from app.kv_salt import adapter_identity

# All that vLLM reads of an adapter. Its folder may hold the trainer's checkpoints as well.
_FILES = (CONFIG, "adapter_model.*")
_DIGEST_BYTES = 12


class AdapterLoader(LoraModelLoader):
    """Ray calls `load_model_from_config` on the replica's event loop, once for each adapter that it has not loaded."""

    def __init__(self, directory: Path | None, **kwargs: Any) -> None:
        """`directory`: where the adapters lie; None: in the bucket that the replica's LLMConfig names."""
        # Named after its process: `tierserve serve` sweeps what was left by one that was killed.
        self._copies = tempfile.TemporaryDirectory(prefix=f"tierserve-{os.getpid()}-lora-")
        super().__init__(lora_root=self._copies.name, **kwargs)
        self._directory = directory
        self._loaded: dict[str, DiskMultiplexConfig] = {}
        self._refused: set[str] = set()

    async def load_model_from_config(self, lora_model_id: str, llm_config: Any) -> DiskMultiplexConfig:
        """Raises HTTPException, a 404, if there is no such adapter."""
        if lora_model_id not in self._loaded:
            if self._directory is None:
                found = await super().load_model_from_config(lora_model_id, llm_config)
                path = await asyncio.to_thread(_named_by_content, Path(found.local_path))
            else:
                path = await asyncio.to_thread(self._copy, self._directory, lora_model_id)
            self._loaded[lora_model_id] = DiskMultiplexConfig(
                model_id=lora_model_id,
                max_total_tokens=None,
                local_path=str(path),
                lora_assigned_int_id=global_id_manager.next(),
            )
        return self._loaded[lora_model_id]

    def refused(self, lora_model_id: str) -> None:
        """The engine could not take it: its folder may be mended by the next time that somebody asks."""
        self._refused.add(lora_model_id)

    async def renew(self, lora_model_id: str) -> None:
        """Copy a refused adapter again, into the very value that Ray keeps and hands to the engine. Not from a bucket:
        Ray reads it once."""
        if lora_model_id not in self._refused or self._directory is None:
            return
        path = await asyncio.to_thread(self._copy, self._directory, lora_model_id)
        self._refused.discard(lora_model_id)
        loaded = self._loaded[lora_model_id]
        old, loaded.local_path = Path(loaded.local_path), str(path)
        await asyncio.to_thread(shutil.rmtree, old.parent, ignore_errors=True)

    def identity(self, lora_model_id: str) -> str:
        """What names a loaded adapter's KV (app/kv_salt.py); empty for whatever is none."""
        loaded = self._loaded.get(lora_model_id)
        return "" if loaded is None else adapter_identity(lora_model_id, loaded.local_path)

    def close(self) -> None:
        self._copies.cleanup()

    def _copy(self, directory: Path, lora_model_id: str) -> Path:
        name = lora_model_id.partition(":")[2]
        source = folder_of(directory, name)
        if source is None:
            raise HTTPException(404, f"The model `{lora_model_id}` does not exist: there is no adapter {name}.")
        target = Path(tempfile.mkdtemp(dir=self._copies.name))
        for pattern in _FILES:
            for file in source.glob(pattern):
                shutil.copy(file, target)
        return _named_by_content(target)


def _named_by_content(copy: Path) -> Path:
    """Rename the directory `copy` to a digest of its files; return it."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for file in sorted(path for pattern in _FILES for path in copy.glob(pattern)):
        with file.open("rb") as content:
            digest.update(file.name.encode() + b"\0" + hashlib.file_digest(content, "blake2b").digest())
    # A directory of its own: an adapter may be there under another name with the same content.
    target = Path(tempfile.mkdtemp(dir=copy.parent)) / digest.hexdigest()
    copy.rename(target)
    return target
