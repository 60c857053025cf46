"""What a benchmark found, and the files that it becomes: JSON, Parquet, PNG, one HTML page."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.bench.load.charts import Chart
from app.bench.load.environment import Environment
from app.bench.load.output import plain, write_records
from app.bench.load.page import page
from app.bench.load.record import RequestRecord
from app.bench.load.summary import Summary
from app.bench.load.table import Table


@dataclass(frozen=True, slots=True)
class Goal:
    """Something that should be true of the figures. `measured` is None where it could not be measured."""

    name: str
    target: str
    measured: float | None
    met: bool


def at_least(name: str, bound: float, measured: float | None) -> Goal:
    return Goal(name, f">= {bound:g}", measured, measured is not None and measured >= bound)


def at_most(name: str, bound: float, measured: float | None) -> Goal:
    return Goal(name, f"<= {bound:.4g}", measured, measured is not None and measured <= bound)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """`figures` are what the benchmark is about (its own keys of the JSON object); `command` made them; `note` says
    what was done, in Markdown.
    """

    name: str
    title: str
    command: str
    settings: Mapping[str, Any]
    seed: int
    environment: Environment
    figures: Mapping[str, Any]
    records: tuple[RequestRecord, ...] = ()
    summaries: Mapping[str, Summary] = field(default_factory=dict)
    goals: tuple[Goal, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        whole: dict[str, Any] = plain(
            {
                "bench": self.name,
                "title": self.title,
                "note": self.note,
                **self.figures,
                "goals": list(self.goals),
                "summary": dict(self.summaries),
                "tables": list(self.tables),
                "charts": [{"file": self._file(chart), "title": chart.title} for chart in self.charts],
                **self.about(),
            }
        )
        return whole

    def _file(self, chart: Chart) -> str:
        return f"{self.name}-{chart.name}.png"

    def about(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "settings": dict(self.settings),
            "seed": self.seed,
            "environment": self.environment.as_dict(),
        }

    def write(self, directory: Path) -> list[Path]:
        """NAME.json, NAME.parquet, NAME-CHART.png and NAME.html in `directory`, which is made. Returns the paths."""
        directory.mkdir(parents=True, exist_ok=True)
        written = [directory / f"{self.name}.json"]
        written[0].write_text(json.dumps(self.as_json(), indent=1) + "\n")
        if self.records:
            written.append(directory / f"{self.name}.parquet")
            write_records(written[-1], self.records, self.about())
        for chart in self.charts:
            written.append(directory / self._file(chart))
            written[-1].write_bytes(chart.png)
        written.append(directory / f"{self.name}.html")
        written[-1].write_text(page(self.title, self.as_json(), self.tables, self.charts))
        return written
