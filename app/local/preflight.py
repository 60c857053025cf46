"""Everything that can be known to fail before a start, in the order of what it costs to find out."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from app.errors import SettingsError, TierserveError
from app.local.accelerators import check_accelerator
from app.local.machine import Machine, check_platform, check_resources, check_room
from app.local.paths import check_paths
from app.local.quiet import quiet_import_of_vllm
from app.local.serve_file import ServeFile
from app.local.serve_schema import check_schema
from app.settings_auth import AuthSettings
from app.settings_text import Loc


def check_here(file: ServeFile, *, room: bool = True) -> None:
    """Raises MachineError, ModelError or SettingsError for what this machine lacks. Imports nothing heavy.

    `room`: whether to look at free memory and disk, which tell nothing of a file while something of ours runs.
    """
    machine = Machine.read()
    check_resources((entry.settings for entry in file.applications), machine)
    for index, entry in enumerate(file.applications):
        check_platform(entry.settings, machine)
        if room:
            check_room(entry.settings, machine)
        with _placed(file, index):
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

        for index, entry in enumerate(file.applications):
            for model in entry.settings.models:
                with _placed(file, index):
                    check_accelerator(model)
                    check_engine_arguments(model)
                    router_arguments(model)


# How a check's line begins: which model, and which of its keys; or a key of the application.
_ABOUT = re.compile(r"(?:model (?P<model>[^\s:,]+)[:,] )?(?P<keys>[a-z_0-9]+(?:\.[A-Za-z_0-9]+)*)[:, ]")


@contextmanager
def _placed(file: ServeFile, application: int) -> Iterator[None]:
    """Puts the file and the line in front of each line of an error that a check raises."""
    try:
        yield
    except TierserveError as error:
        lines = (f"{file.at(_loc(file, application, line))}: {line}" for line in str(error).splitlines())
        raise type(error)("\n".join(lines)) from None


def _loc(file: ServeFile, application: int, line: str) -> Loc:
    about = _ABOUT.match(line)
    here: Loc = ("applications", application, "args")
    if about is None or about["model"] is None:
        return (*here, *about["keys"].split(".")) if about is not None else ()
    ids = [model.id for model in file.applications[application].settings.models]
    index = ids.index(about["model"]) if about["model"] in ids else 0
    return (*here, "models", index, *about["keys"].split("."))
