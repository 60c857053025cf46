from pathlib import Path

import pytest
import yaml

from app.bench.systems.engines import BLOCK_TOKENS, local_engines
from app.commands.serve import DEFAULT_FILE


def test_the_shape_is_that_of_the_local_file() -> None:
    model = local_engines().model
    written = yaml.safe_load(DEFAULT_FILE.read_text())["applications"][0]["args"]["models"][0]
    assert model.engine == written["engine"]
    assert (model.id, model.dtype, model.replicas) == (written["id"], written["dtype"], written["replicas"])
    assert model.l0.gib == written["l0"]["gib"]


def test_blocks_and_threads_are_set_for_all() -> None:
    model = local_engines().model
    assert model.l0.block_tokens == BLOCK_TOKENS
    assert set(model.env) == {"OMP_NUM_THREADS"}


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "4")])
def test_replicas_divide_the_cores(cores: int, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert local_engines().model.env["OMP_NUM_THREADS"] == threads


def test_a_files_own_variables_stay(tmp_path: Path) -> None:
    document = yaml.safe_load(DEFAULT_FILE.read_text())
    document["applications"][0]["args"]["models"][0]["env"] = {"A": "b"}
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(document))
    assert local_engines(file).model.env["A"] == "b"
