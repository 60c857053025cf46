import json
from pathlib import Path

import pytest

from app.bench.doc import note_times, read_times, section, write_page
from app.bench.load import BenchResult, Environment
from app.bench.load.charts import Words, bars
from app.bench.load.result import at_least
from app.bench.load.table import Table
from app.errors import ServingError


def result(name: str) -> BenchResult:
    return BenchResult(
        name=name,
        title=f"About {name}",
        command=f"tierserve bench {name} --rounds 2",
        settings={},
        seed=1,
        environment=Environment.read(),
        figures={},
        tables=(Table(("tokens", "cold"), (("500", "1.2 s"),)),),
        goals=(at_least("fast", 2.0, 3.0),),
        charts=(bars("bars", Words("T"), {"a": {"x": 1.0}}),),
        note=f"`tierserve bench {name}`: what it does.\n\nMore of it.",
    )


def test_the_page_is_made_of_what_lies_in_the_directory(tmp_path: Path) -> None:
    results, docs = tmp_path / "out", tmp_path / "docs"
    for name in ("zebra", "rag", "ttft"):
        result(name).write(results)
    (results / "other.json").write_text(json.dumps({"not": "a result"}))
    page = write_page(results, docs).read_text()
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## About ttft",
        "## About rag",
        "## About zebra",
    ]
    assert {path.name for path in (docs / "benchmarks").iterdir()} == {
        "zebra-bars.png",
        "rag-bars.png",
        "ttft-bars.png",
    }
    for path in (docs / "benchmarks").iterdir():
        assert f"](benchmarks/{path.name})" in page


def test_charts_of_results_that_are_gone_go_too(tmp_path: Path) -> None:
    results, docs = tmp_path / "out", tmp_path / "docs"
    for name in ("rag", "ttft"):
        result(name).write(results)
    write_page(results, docs)
    (results / "rag.json").unlink()
    write_page(results, docs)
    assert [path.name for path in (docs / "benchmarks").iterdir()] == ["ttft-bars.png"]


def test_a_section_names_its_command_what_it_does_and_what_came_out() -> None:
    text = section(result("ttft").as_json())
    assert "    tierserve bench ttft --rounds 2\n" in text
    assert "\nWhat it does.\n\nMore of it.\n" in text
    assert "| tokens | cold |\n|---|---:|\n| 500 | 1.2 s |" in text
    assert "| fast | >= 2 | 3 | met |" in text


def test_times_are_kept_from_run_to_run_and_shown(tmp_path: Path) -> None:
    results, docs = tmp_path / "out", tmp_path / "docs"
    result("ttft").write(results)
    note_times(results, {"ttft": 100.0, "rag": 60.0})
    note_times(results, {"ttft": 120.0})
    assert read_times(results) == {"ttft": 120.0, "rag": 60.0}
    page = write_page(results, docs).read_text()
    assert "Measured in 120 s on " in page
    assert "All of the above: 3 minutes." in page


def test_without_results_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="has no results"):
        write_page(tmp_path, tmp_path / "docs")
