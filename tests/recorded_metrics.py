"""Ray's metric classes, keeping what they are told: outside a cluster Ray keeps nothing."""

import pytest
import ray.util.metrics

Values = dict[tuple[str, ...], float]
"""Name and the labels' values -> what it is now."""


def recording(monkeypatch: pytest.MonkeyPatch) -> Values:
    values: Values = {}

    class Recorded:
        def __init__(self, name: str, tag_keys: tuple[str, ...]) -> None:
            self.name, self.tag_keys = name, tag_keys

        def _key(self, tags: dict[str, str]) -> tuple[str, ...]:
            assert tuple(tags) == self.tag_keys, (self.name, tags, self.tag_keys)
            return self.name, *tags.values()

        def set(self, value: float, tags: dict[str, str]) -> None:
            values[self._key(tags)] = value

        def inc(self, value: float, tags: dict[str, str]) -> None:
            assert value > 0, "Ray refuses anything else"
            values[self._key(tags)] = values.get(self._key(tags), 0.0) + value

    for kind in ("Counter", "Gauge"):
        monkeypatch.setattr(ray.util.metrics, kind, Recorded)
    return values
