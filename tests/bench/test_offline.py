import json
import re
from typing import Any

import pytest
from click.testing import CliRunner

from app.bench import pool, routing
from app.bench.offline import OFFLINE
from app.commands import simulate


def cells(name: str, figures: dict[str, Any]) -> list[tuple[str, ...]]:
    (table,) = OFFLINE[name].tables(json.loads(json.dumps(figures)))
    assert all(len(row) == len(table.heads) for row in table.rows)
    return list(table.rows)


def test_the_pools_measurement_becomes_a_table(tmp_path: Any) -> None:
    found = pool.run(str(tmp_path), rounds=1, cases=((4, 64 * 1024),), file_counts=(), cold=False)
    ((case, load, *_),) = cells("pool", found)
    assert case == "4 x 0.0625 MiB"
    assert re.fullmatch(r"[\d,]+ MB/s", load)


def test_the_cost_of_routing_becomes_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "PROMPTS", 60)
    rows = cells("routing", routing.run(actor=False, inserts=1000))
    assert "all that our routing core does for a request, 64 replicas" in {row[0] for row in rows}
    assert not any("actor" in row[0] for row in rows), "what was not measured is not shown"


def test_a_simulation_becomes_a_table_of_its_policies() -> None:
    options = ["--mix", "rag", "--replicas", "2", "--requests", "100", "--policy", "kv_aware", "--policy", "ray_pow2"]
    done = CliRunner().invoke(simulate.command, [*options, "--json"])
    rows = cells("simulated-fleet", json.loads(done.stdout))
    assert [row[0] for row in rows] == ["kv_aware", "ray_pow2"]
