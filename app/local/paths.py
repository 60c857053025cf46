"""Can what a file names on this machine be used? A replica would find out too late, and say so only in its log."""

import os
from pathlib import Path

from app.errors import MachineError, ModelError
from app.settings import L2Settings, Settings


def check_paths(settings: Settings) -> None:
    """Make the L2 directories of `settings`, and look for models that are named by a path.

    Raises:
        MachineError: a pool cannot be where it is said to be. ModelError: there is no model at a path.
    """
    for model in settings.models:
        if model.l1.enabled and model.l2.enabled and model.l2.backend != "custom":
            _check_pool(model.id, model.l2)
        if model.source and model.source.startswith(("/", ".", "~")) and not _has_model(model.source):
            raise ModelError(f"model {model.id}: source {model.source} is not a directory with a config.json in it")


def _check_pool(model_id: str, l2: L2Settings) -> None:
    directory = l2.directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"model {model_id}: l2.path {directory} cannot be used ({error.strerror}): give a writable directory"
        ) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise MachineError(f"model {model_id}: l2.path {directory} is not writable: give a directory that is")


def _has_model(source: str) -> bool:
    return (Path(source).expanduser() / "config.json").is_file()
