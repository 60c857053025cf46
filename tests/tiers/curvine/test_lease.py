"""One janitor a pool: who may be it."""

import os
import time
from pathlib import Path

from app.tiers.curvine.lease import Lease


def test_one_holder_and_a_takeover_when_it_is_stale(tmp_path: Path) -> None:
    path, now = str(tmp_path / "lease"), time.time()
    a, b, c = (Lease(path, name, time.time, ttl_s=10) for name in "abc")
    assert a.hold()
    assert a.hold()
    assert not b.hold()
    os.utime(path, (now - 60, now - 60))
    assert b.hold()
    assert not a.hold()
    assert not c.hold()
    b.release()
    a.release()
    assert c.hold()
    assert os.listdir(tmp_path) == ["lease"]


def test_a_lease_renewed_in_the_last_moment_is_put_back(tmp_path: Path) -> None:
    path = str(tmp_path / "lease")
    fresh = Lease(path, "fresh", lambda: 0.0)
    assert fresh.hold()
    late = Lease(path, "late", lambda: 0.0)
    late._remove("somebody else")
    assert fresh.holder() == "fresh"
