"""Merging an overlay into a manifest, by the rules of Kubernetes' strategic merge that are needed here.

Mappings merge key by key. Lists whose items carry a merge key (`name`, `groupName`) merge item by item, new items at
the end; any other list is replaced. The inputs are not changed.
"""

from typing import Any

_KEYS = ("name", "groupName")


def merge(base: Any, overlay: Any) -> Any:
    if isinstance(base, dict) and isinstance(overlay, dict):
        merged = dict(base)
        for key, value in overlay.items():
            merged[key] = merge(base[key], value) if key in base else value
        return merged
    if isinstance(base, list) and isinstance(overlay, list):
        key = _merge_key(base + overlay)
        return _merge_items(base, overlay, key) if key else overlay
    return overlay


def _merge_key(items: list[Any]) -> str | None:
    for key in _KEYS:
        if items and all(isinstance(item, dict) and key in item for item in items):
            return key
    return None


def _merge_items(base: list[Any], overlay: list[Any], key: str) -> list[Any]:
    changes = {item[key]: item for item in overlay}
    merged = [merge(item, changes.pop(item[key])) if item[key] in changes else item for item in base]
    return merged + list(changes.values())
