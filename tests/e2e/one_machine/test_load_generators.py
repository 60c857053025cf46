"""Public load generators work unmodified. Those that are not installed are skipped."""

from pathlib import Path

import pytest

from app.bench.generators import GENERATORS, Generator, Job, run_one
from tests.e2e.conftest import Served

MODEL = "smollm2-135m-instruct"


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda each: each.name)
def test_every_request_of_a_generator_is_answered(generator: Generator, served: Served, tmp_path: Path) -> None:
    if not generator.version():
        pytest.skip(f"{generator.name} is not on PATH")
    tokenizer = next((served.home / "models").glob("smollm2-*"))
    outcome = run_one(generator, Job(served.url, MODEL, str(tokenizer), 6, tmp_path))
    assert not outcome.error, outcome.error
    assert outcome.succeeded == 6
