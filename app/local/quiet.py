"""Keeps the libraries' own chatter out of a command's output, where `--json` promises one object."""

import logging
import os
import warnings


def quiet_ray() -> None:
    """Ray and Serve log to standard error; of a command only what went wrong is wanted."""
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)


def quiet_lmcache() -> None:
    """To be called before LMCache is imported: it logs to standard error, and what it imports warns of old versions."""
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    warnings.filterwarnings("ignore", category=FutureWarning, module="google")


def quiet_vllm() -> None:
    """vLLM sets up its logging to standard output when it is imported. To be called after Ray was started, if this
    process starts it: engines inherit the environment, and theirs should log."""
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    logging.getLogger("vllm").setLevel(logging.ERROR)
