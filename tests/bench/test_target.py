import os
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from app.bench.target import Node, Tiers, _known_tokenizer, own_pool
from app.bench.two_nodes import spread_over_two
from app.commands.serve import DEFAULT_FILE
from app.errors import ModelError, ServingError
from app.settings import home, load_settings


def tiers(*nodes: tuple[str, ...]) -> Tiers:
    return Tiers(cast("Any", None), [Node(str(at), replicas) for at, replicas in enumerate(nodes)], 64)


def test_writer_and_reader_are_on_different_nodes_where_there_are_several() -> None:
    apart = tiers(("a", "b"), ("c",))
    assert apart.pair() == ("a", "c")
    assert not apart.share_a_node(*apart.pair())
    together = tiers(("a", "b"))
    assert together.pair() == ("a", "b")
    assert together.share_a_node(*together.pair())


def test_one_replica_is_not_enough() -> None:
    with pytest.raises(ServingError, match="two replicas"):
        tiers(("a",)).pair()


def test_two_nodes_serve_the_file_that_a_laptop_serves_with_a_replica_each() -> None:
    document = yaml.safe_load(DEFAULT_FILE.read_text())
    before = yaml.safe_dump(document)
    spread = spread_over_two(document, {"l2": {"backend": "curvine", "path": "/elsewhere"}})
    assert yaml.safe_dump(document) == before
    (model,) = load_settings(spread["applications"][0]["args"]).models
    assert model.replicas == 2
    assert model.num_cpus > 0.5, "a node has one CPU: both would fit on it"
    assert model.routing.debug
    assert model.l2.path == Path("/elsewhere")


def test_pools_of_killed_runs_are_removed_and_those_of_living_ones_stay() -> None:
    place = home() / "bench"
    dead, living, other = place / "l2-999999999-x", place / f"l2-{os.getpid()}-x", place / "results"
    for path in (dead, living, other):
        path.mkdir(parents=True)
    with own_pool() as made:
        assert made.is_dir()
        assert not dead.exists()
        assert living.is_dir()
        assert other.is_dir()
    assert not made.exists()


def test_a_model_whose_tokenizer_nobody_knows_needs_one_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--tokenizer"):
        _known_tokenizer("my-model")
    assert _known_tokenizer("org/model") == "org/model"
    assert _known_tokenizer(str(tmp_path)) == str(tmp_path)
