"""Everything that can be known to fail before a start, in the order of what it costs to find out."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from app.errors import Loc, SettingsError, TierserveError
from app.local.accelerators import check_accelerator
from app.local.machine import Machine, check_platform, check_resources, check_room
from app.local.paths import check_home, check_paths
from app.local.quiet import quiet_import_of_vllm
from app.local.serve_file import ServeFile
from app.local.serve_schema import check_schema
from app.settings import ModelSettings
from app.settings_auth import AuthSettings


def check_here(file: ServeFile, *, room: bool = True) -> None:
    """Raises MachineError, ModelError or SettingsError for what this machine lacks. Imports nothing heavy.

    `room`: whether to look at free memory and disk, which tell nothing of a file while something of ours runs.
    """
    found = Findings(file)
    machine = Machine.read()
    with found.gathering():
        check_resources((entry.settings for entry in file.applications), machine)
    with found.gathering():
        check_home()
    for index, entry in enumerate(file.applications):
        with found.gathering():
            check_platform(entry.settings, machine)
            if room:
                check_room(entry.settings, machine)
        with found.gathering(("applications", index, "args")):
            check_keys(entry.settings.auth)
    for section, model in _models(file):
        with found.gathering(section):
            check_paths(model)
    found.raise_all()


def check_keys(auth: AuthSettings, environment: Mapping[str, str] = os.environ) -> None:
    """A run here hands its own environment on. Raises SettingsError for a key that it lacks: no ingress would start."""
    for index, entry in enumerate(auth.api_keys):
        if entry.key_env is not None and not environment.get(entry.key_env):
            tenant = f"auth.api_keys: {entry.key_env} (tenant {entry.tenant})"
            raise SettingsError(
                f"{tenant} is not set here: export {entry.key_env}=... before serving",
                ("auth", "api_keys", index, "key_env"),
            )


def check_file(file: ServeFile) -> None:
    """Raises SettingsError for a key that Ray Serve does not have, an engine argument that vLLM would refuse, a wrong
    routing option. Imports Ray and vLLM (seconds)."""
    found = Findings(file)
    with found.gathering():
        check_schema(file)
    with quiet_import_of_vllm():
        from app.serving.engine_arguments import engine_problems
        from app.serving.llm_config import router_arguments

        for section, model in _models(file):
            with found.gathering(section):
                check_accelerator(model)
            for problem in engine_problems(model):
                found.add(problem, section)
            with found.gathering(section):
                router_arguments(model)
    found.raise_all()


def _models(file: ServeFile) -> Iterator[tuple[Loc, ModelSettings]]:
    """Each with the keys that lead to it."""
    for index, entry in enumerate(file.applications):
        for number, model in enumerate(entry.settings.models):
            yield ("applications", index, "args", "models", number), model


class Findings:
    """What several checks have against a file, gathered, so that nobody has to correct it one mistake at a time."""

    def __init__(self, file: ServeFile) -> None:
        self._file = file
        self._errors: list[TierserveError] = []

    @contextmanager
    def gathering(self, section: Loc = ()) -> Iterator[None]:
        """Takes the error of a check. `section`: what it looked at; without one, its message says where it is."""
        try:
            yield
        except TierserveError as error:
            self.add(error, section)

    def add(self, error: TierserveError, section: Loc) -> None:
        where = f"{self._file.at((*section, *error.about))}: " if section else ""
        self._errors.append(type(error)(f"{where}{error}"))

    def raise_all(self) -> None:
        """One error, of the kind of the first."""
        if self._errors:
            raise type(self._errors[0])("\n".join(map(str, self._errors)))
