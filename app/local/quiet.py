"""Keeps the libraries' own chatter out of a command's output, where `--json` promises one object."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_WORKER_DIED = "A worker died or was killed"


def quiet_ray() -> None:
    """Ray and Serve log to standard error; of a command only what went wrong is wanted."""
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)


def quiet_raylet() -> None:
    """Keep back the paragraph that Ray prints of each process that dies: `tierserve serve` says what it means.
    Other errors of the raylet (memory that runs out) are still shown. Private name of ray 2.60.0."""
    from ray._private import worker

    shown = worker.print_to_stdstream

    def show(data: Any, *args: Any, **options: Any) -> None:
        if not any(line.startswith(_WORKER_DIED) for line in data["lines"]):
            shown(data, *args, **options)

    worker.print_to_stdstream = show


def quiet_lmcache() -> None:
    """To be called before LMCache is imported: it logs to standard error, and what it imports warns of old versions."""
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    warnings.filterwarnings("ignore", category=FutureWarning, module="google")


def quiet_vllm() -> None:
    """vLLM sets up its logging to standard output when it is imported. To be called after Ray was started, if this
    process starts it: engines inherit the environment, and theirs should log."""
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    logging.getLogger("vllm").setLevel(logging.ERROR)


@contextmanager
def quiet_import_of_vllm() -> Iterator[None]:
    """Like `quiet_vllm`, for a process that starts Ray later: nothing stays in its environment. vLLM reads the variable
    once, when it is imported."""
    before = os.environ.get("VLLM_CONFIGURE_LOGGING")
    quiet_vllm()
    try:
        yield
    finally:
        if before is None:
            del os.environ["VLLM_CONFIGURE_LOGGING"]


@contextmanager
def no_native_errors() -> Iterator[None]:
    """Nothing of what native code prints to standard error, which Python cannot redirect, is seen meanwhile."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
