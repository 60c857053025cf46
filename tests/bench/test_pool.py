"""The benchmarks run and say what they promise; their figures are not for tests."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.bench import pool, retention

pytest.importorskip("lmcache")


def test_the_result_has_the_promised_shape_and_leaves_nothing(tmp_path: Path) -> None:
    result = pool.run(str(tmp_path), rounds=1, cases=[(2, 100_000)], file_counts=(100,), cold=True)
    assert list(tmp_path.iterdir()) == []
    case = result["cases"][0]
    assert (case["keys"], case["bytes"]) == (2, 100_000)
    assert set(case["load_mb_s"]) == {"ours", "fs", "fs_native", "preadv"}
    assert set(case["store_mb_s"]) == set(case["lookup_ms"]) == {"ours", "fs", "fs_native"}
    assert set(case["cold_load_mb_s"]) == set(case["load_mb_s"])
    assert result["lookup_by_files"][0]["files"] == 100
    assert len(pool.verdict(result)) == 2


def test_retention_on_a_small_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": n * 1000, "input_length": 1024, "hash_ids": [0, n % 7 + 1]} for n in range(100)]
    trace.write_text("\n".join(map(json.dumps, rows)))
    assert retention.run(trace, [100])["rows"][0]["score"] > 90
    done = CliRunner().invoke(retention.retention, [str(trace), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["requests"] == 100
