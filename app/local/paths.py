"""Can what a file names on this machine be used? A replica would find out too late, and say so only in its log."""

import os
from pathlib import Path

from app.adapter_folders import CONFIG, folders_in, passed_over, rank_of
from app.errors import Loc, MachineError, ModelError
from app.local.machine import existing, free_bytes
from app.settings import GiB, L2Settings, ModelSettings, Settings, home

# The ranks that vLLM 0.29.0 can be built for (`max_lora_rank`), and the one it is built for unless told.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_RANK = 16
_SOURCES = "give one that a model was saved to, or a Hugging Face id"
# Adapters, and folders that are none, which are named.
_NAMED = 10


def check_home() -> None:
    """Raises MachineError: TIERSERVE_HOME cannot be used. Makes nothing: whoever only asks leaves no trace."""
    _check_usable("TIERSERVE_HOME", home())


def check_paths(model: ModelSettings) -> None:
    """Look at the L2 directory of `model`, and for a model and LoRA adapters that are named by a path. Makes nothing.

    Raises:
        MachineError: a pool cannot be where it is said to be.
        ModelError: there is no model at a path, or an adapter that vLLM would refuse when it is first asked for.
    """
    if pool := _pool(model):
        _check_usable(f"model {model.id}: l2.path", pool.directory, ("l2", "path"))
    if model.source and model.source.startswith(("/", ".", "~")) and not _has_model(model.source):
        raise ModelError(
            f"model {model.id}: source {model.source} is not a directory with a config.json in it: {_SOURCES}",
            ("source",),
        )
    if model.lora is not None and model.lora.directory is not None:
        _check_adapters(model, model.lora.directory)


def notes_on_space(settings: Settings) -> list[str]:
    """A line for each pool that may come to take more than there is room for: no mistake, since it then stores less and
    serving goes on."""
    pools = {pool.directory: pool for model in settings.models if (pool := _pool(model))}
    return [
        f"l2.path {directory} has {free / GiB:.1f} GiB free, less than its capacity_gib of {pool.capacity_gib:g}"
        for directory, pool in pools.items()
        if (free := free_bytes(directory)) < pool.capacity_gib * GiB
    ]


def notes_on_adapters(settings: Settings) -> list[str]:
    """Of each directory of adapters: how many are in it, and which of its folders are passed over."""
    directories = {model.lora.directory: None for model in settings.models if model.lora is not None}
    return [line for directory in directories if directory is not None for line in _notes_on_adapters(directory)]


def _notes_on_adapters(directory: Path) -> list[str]:
    names = [folder.name for folder in folders_in(directory)]
    where, over = f"lora.path {directory}:", passed_over(directory)
    lines = [f"{where} {len(names)} adapter{'' if len(names) == 1 else 's'}{f' ({_listed(names)})' if names else ''}"]
    lines += [f"{where} {name} is passed over, {over[name]}" for name in list(over)[:_NAMED]]
    return lines + ([f"{where} {len(over) - _NAMED} more folders are passed over"] if len(over) > _NAMED else [])


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _pool(model: ModelSettings) -> L2Settings | None:
    return model.l2 if model.l1.enabled and model.l2.enabled and model.l2.backend != "custom" else None


def _check_usable(name: str, directory: Path, about: Loc = ()) -> None:
    """It need not be there: whoever uses it makes it, as the same user."""
    there = existing(directory)
    why = "is a file" if not there.is_dir() else None if os.access(there, os.W_OK | os.X_OK) else "is not writable"
    if why:
        raise MachineError(f"{name} {directory} cannot be used ({there} {why}): give a writable directory", about)


def _check_adapters(model: ModelSettings, directory: Path) -> None:
    """An empty directory is right: adapters may come later."""
    if wrong := _wrong_directory(directory) or _wrong_adapter(directory, model.engine.get("max_lora_rank") or _RANK):
        raise ModelError(f"model {model.id}: lora.path{wrong}", ("lora", "path"))


def _wrong_directory(directory: Path) -> str | None:
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "is not there"
        return f" {directory} {what}: give the directory whose folders are adapters, or make it (it may be empty)"
    if not os.access(directory, os.R_OK | os.X_OK):
        return f" {directory} cannot be read: give its user the right to (chmod u+rx)"
    if (directory / CONFIG).is_file():
        return f" {directory} is itself an adapter: give the directory that it lies in, {directory.parent}"
    return None


def _wrong_adapter(directory: Path, most: object) -> str | None:
    """The first; `most`: the largest rank that vLLM is told to take."""
    for folder in folders_in(directory):
        try:
            rank = rank_of(folder)
        except ValueError as error:
            return f", adapter {folder}: {error}"
        if isinstance(most, int) and rank > most:
            wide = next((each for each in _RANKS if each >= rank), None)
            remedy = f"set `engine: {{max_lora_rank: {wide}}}`" if wide else f"vLLM takes at most {_RANKS[-1]}"
            return f", adapter {folder}: its rank is {rank}, above {most}: {remedy}"
    return None


def _has_model(source: str) -> bool:
    return (Path(source).expanduser() / "config.json").is_file()
