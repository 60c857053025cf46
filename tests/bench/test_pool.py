"""The benchmarks run and say what they promise; their figures are not for tests."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.bench import compression, pool, retention
from app.tiers.curvine.landing import Landing
from app.tiers.curvine.outcomes import Put
from app.tiers.curvine.pool import Pool
from tests.tiers.curvine.conftest import chunk_of

pytest.importorskip("lmcache")


def test_the_result_has_the_promised_shape_and_leaves_nothing(tmp_path: Path) -> None:
    result = pool.run(str(tmp_path), rounds=1, cases=[(2, 100_000)], file_counts=(100,), cold=True)
    assert list(tmp_path.iterdir()) == []
    case = result["cases"][0]
    assert (case["keys"], case["bytes"]) == (2, 100_000)
    assert set(case["load_mb_s"]) == {"ours", "fs", "fs_native", "preadv", "preadv_hashed"}
    assert set(case["store_mb_s"]) == set(case["lookup_ms"]) == {"ours", "fs", "fs_native"}
    assert set(case["cold_load_mb_s"]) == {"ours", "fs", "fs_native", "preadv"}
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


def test_compression_of_a_pools_own_chunks(tmp_path: Path) -> None:
    chunks = Pool(tmp_path)
    chunks.open()
    chunk = chunk_of(1, 4096)
    assert chunks.put(chunk, memoryview(bytes(4096)), Landing()) is Put.STORED
    rows = compression.run(compression.read_samples(tmp_path, 5))
    assert {row["form"] for row in rows} == {"as stored", "bytes shuffled"}
    assert all(row["ratio"] > 10 for row in rows), "zeros compress"
    assert CliRunner().invoke(compression.compression, [str(tmp_path), "--json"]).exit_code == 0
    (tmp_path / "empty").mkdir()
    assert CliRunner().invoke(compression.compression, [str(tmp_path / "empty")]).exit_code == 1


def test_shuffling_puts_bytes_of_one_significance_together() -> None:
    assert compression.Sample(b"a1b2c3", 2).shuffled() == b"abc123"
