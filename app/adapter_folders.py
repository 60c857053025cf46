"""LoRA adapters in a directory: each is a folder in PEFT's format and is called what the folder is. Pure; all block."""

import json
import re
from pathlib import Path

CONFIG = "adapter_config.json"
# A name becomes a part of paths: nothing in it may lead out of the directory.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def folder_of(directory: Path, name: str) -> Path | None:
    """Where the adapter lies, or None if there is none of that name."""
    return directory / name if is_name(name) and (directory / name / CONFIG).is_file() else None


def folders_in(directory: Path) -> list[Path]:
    """Every adapter, by name. A directory that cannot be read has none."""
    try:
        there = sorted(directory.iterdir())
    except OSError:
        return []
    return [folder for folder in there if folder_of(directory, folder.name) is not None]


def passed_over(directory: Path) -> dict[str, str]:
    """Folders that are no adapters, by name, and why. A directory that cannot be read has none."""
    try:
        folders = sorted(path for path in directory.iterdir() if path.is_dir())
    except OSError:
        return {}
    return {folder.name: why for folder in folders if (why := _why_not(folder))}


def _why_not(folder: Path) -> str | None:
    if not is_name(folder.name):
        return "its name is none for an adapter: letters, digits and . _ : - only, beginning with a letter or digit"
    return None if (folder / CONFIG).is_file() else f"no {CONFIG} in it"


def rank_of(folder: Path) -> int:
    """The adapter's rank. Raises ValueError if its configuration is none of PEFT's."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{CONFIG} cannot be read ({error.strerror})") from None
    except ValueError:
        raise ValueError(f"{CONFIG} is not valid JSON") from None
    rank = config.get("r") if isinstance(config, dict) else None
    if not isinstance(rank, int):
        raise ValueError(f"{CONFIG} has no number `r`, the adapter's rank: is it PEFT's?")
    return rank
