"""Files of a result: what is written can be read back, and the page needs nothing else."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from app.bench.load import charts
from app.bench.load.environment import Environment
from app.bench.load.output import plain, read_records, write_records
from app.bench.load.result import BenchResult, at_least, at_most
from app.bench.load.summary import summarize
from tests.bench.load.records import failed, hit, record

RECORDS = (record(), hit(l2=64, index=1, replica="r<1>"), failed(index=2))
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def result() -> BenchResult:
    words = charts.Words("Title", "sub", "x", "y", "foot")
    return BenchResult(
        name="demo",
        title="A <title> & more",
        command="tierserve bench demo",
        settings={"rounds": 3},
        seed=7,
        environment=Environment.read(),
        figures={"rows": [{"tokens": 500, "cold_s": 1.23456789}]},
        records=RECORDS,
        summaries={"all": summarize(RECORDS, 1.0)},
        goals=(at_least("fast <enough>", 15, 20.0), at_most("short", 1.0, None)),
        charts=(charts.bars("bars", words, {"a": {"cold": 1.0, "l2": 0.5}}),),
    )


def test_every_request_survives_parquet(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    write_records(path, RECORDS, {"seed": 7})
    assert read_records(path) == list(RECORDS)
    assert json.loads(pq.read_schema(path).metadata[b"tierserve"]) == {"seed": 7}


def test_no_requests_are_a_file_too(tmp_path: Path) -> None:
    write_records(tmp_path / "r.parquet", [])
    assert read_records(tmp_path / "r.parquet") == []


def test_writes_json_parquet_pictures_and_a_page(result: BenchResult, tmp_path: Path) -> None:
    written = result.write(tmp_path / "deep" / "out")
    assert [path.name for path in written] == ["demo.json", "demo.parquet", "demo-bars.png", "demo.html"]
    assert written[2].read_bytes().startswith(PNG)
    whole = json.loads(written[0].read_text())
    assert whole == result.as_json()
    assert whole["rows"] == [{"tokens": 500, "cold_s": 1.234568}]
    assert [goal["met"] for goal in whole["goals"]] == [True, False]
    assert whole["environment"]["cores"] > 0
    assert whole["charts"] == [{"file": "demo-bars.png", "title": "Title"}]
    assert {"torch", "pyarrow", "tierserve"} <= set(whole["environment"]["versions"])


class _Links(HTMLParser):
    """Collects whatever a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.targets += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]


def test_the_page_is_self_contained_and_escapes_what_it_shows(result: BenchResult, tmp_path: Path) -> None:
    text = result.write(tmp_path)[-1].read_text()
    links = _Links()
    links.feed(text)
    assert links.targets
    assert all(target.startswith("data:image/png;base64,") for target in links.targets)
    assert not links.tags & {"script", "link", "iframe"}
    assert not re.search(r"url\(|@import", text)
    assert "<title>A &lt;title&gt; &amp; more</title>" in text
    assert "fast &lt;enough&gt;" in text


def test_goals_that_could_not_be_measured_are_not_met() -> None:
    assert not at_least("x", 0, None).met
    assert at_least("x", 2, 2.0).met
    assert not at_most("x", 2, 2.1).met


def test_plain_takes_dataclasses_apart_and_rounds() -> None:
    assert plain({"a": (1 / 3, [True, None, "x"]), 2: record().itl_s}) == {
        "a": [0.333333, [True, None, "x"]],
        "2": [0.1, 0.2],
    }


@pytest.mark.parametrize(
    "chart",
    [
        lambda words: charts.lines("n", words, {"a": [(1, 2), (2, 3)], "b": [(1, 2), (2, 3.01)]}, level=(1.5, "t")),
        lambda words: charts.lines("n", words, {"a": [(1, 2), (2, 300)]}, log_y=True),
        lambda words: charts.bars("n", words, {"a": {"x": 1.0}, "b": {"x": 2.0, "y": 3.0}}),
        lambda words: charts.stacked("n", words, {"a": {"l0": 0.25, "l2": 0.75}, "b": {"l0": 1.0}}),
        lambda words: charts.distribution("n", words, {"a": [1.0, 2.0, 3.0], "none": []}),
    ],
)
def test_charts_are_small_pictures(chart: object) -> None:
    assert callable(chart)
    png = chart(charts.Words("T", "s", "x", "y", "f")).png
    assert png.startswith(PNG)
    assert len(png) < 100_000
