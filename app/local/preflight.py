"""Everything that can be known to fail before a start, in the order of what it costs to find out."""

import os
from collections.abc import Mapping

from app.errors import SettingsError
from app.local.accelerators import check_accelerator
from app.local.machine import Machine, check_platform, check_resources, check_room
from app.local.paths import check_paths
from app.local.quiet import quiet_import_of_vllm
from app.local.serve_file import ServeFile
from app.local.serve_schema import check_schema
from app.settings import AuthSettings


def check_here(file: ServeFile, *, room: bool = True) -> None:
    """Raises MachineError, ModelError or SettingsError for what this machine lacks. Imports nothing heavy.

    `room`: whether to look at free memory and disk, which tell nothing of a file while something of ours runs.
    """
    machine = Machine.read()
    check_resources((entry.settings for entry in file.applications), machine)
    for entry in file.applications:
        check_platform(entry.settings, machine)
        if room:
            check_room(entry.settings, machine)
        check_paths(entry.settings)
        check_keys(entry.settings.auth)


def check_keys(auth: AuthSettings, environment: Mapping[str, str] = os.environ) -> None:
    """A run here hands its own environment on. Raises SettingsError for a key that it lacks: no ingress would start."""
    for entry in auth.api_keys:
        if entry.key_env is not None and not environment.get(entry.key_env):
            tenant = f"auth.api_keys: {entry.key_env} (tenant {entry.tenant})"
            raise SettingsError(f"{tenant} is not set here: export {entry.key_env}=... before serving")


def check_file(file: ServeFile) -> None:
    """Raises SettingsError for a key that Ray Serve does not have, an engine argument that vLLM would refuse, a wrong
    routing option. Imports Ray and vLLM (seconds)."""
    check_schema(file)
    with quiet_import_of_vllm():
        from app.serving.engine_arguments import check_engine_arguments
        from app.serving.llm_config import router_arguments

        for entry in file.applications:
            for model in entry.settings.models:
                check_accelerator(model)
                check_engine_arguments(model)
                router_arguments(model)
