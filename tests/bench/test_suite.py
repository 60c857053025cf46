"""All at once, against a scripted endpoint."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from app.bench.suite import ENGINES, NAMES, chosen_of, suite
from app.bench.target import Target
from tests.bench.load.sse import Script, SseServer


def usage(body: dict[str, Any]) -> Script:
    return Script(usage={"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}})


def test_several_share_a_target_and_become_one_page(scripted: SseServer, target: Target, tmp_path: Path) -> None:
    scripted.answer = usage
    out, docs = tmp_path / "out", tmp_path / "docs"
    options = ["--quick", "--only", "agents", "--only", "dialogue", "--url", scripted.url, "--model", "m"]
    options += ["--tokenizer", "here", "--out", str(out), "--docs", str(docs), "--seed", "2", "--json"]
    done = CliRunner().invoke(suite, options)
    assert done.exit_code == 0, done.output
    whole = json.loads(done.stdout)
    assert set(whole["took_s"]) == {"start of the application", "agents", "dialogue"}
    page = Path(whole["pages"][0]).read_text()
    assert "    tierserve bench dialogue --rounds 1 --answer-tokens 16 --seed 2\n" in page
    assert "    tierserve bench agents --agents 2 --steps 4 --seed 2\n" in page
    assert json.loads((out / "agents.json").read_text())["seed"] == 2


def test_every_measurement_of_engines_is_a_command_of_its_own_name() -> None:
    assert all(command.name == name for name, command in ENGINES.items())
    assert len(set(NAMES)) == len(NAMES)


def test_nothing_is_started_beside_an_endpoint_that_runs_unless_it_is_asked_for() -> None:
    assert chosen_of((), None) == list(NAMES)
    assert set(NAMES) - set(chosen_of((), "http://here")) == {"compare"}
    assert chosen_of(("compare",), "http://here") == ("compare",)
