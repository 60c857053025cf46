"""A long call is cut into portions that live no longer than their workers need them."""

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tiers.curvine.portion import MOST
from app.tiers.curvine.portions import Portions


class Part:
    """Something that can be watched."""

    def __init__(self, *, helped: bool) -> None:
        self.helped = helped


@given(count=st.integers(0, 5 * MOST), workers=st.integers(1, 8))
def test_every_chunk_is_in_one_portion_with_one_leader(count: int, workers: int) -> None:
    portions = Portions(count, workers, Part)
    shares = [portions.share(piece) for piece in range(portions.pieces)]
    led = [at for share in shares if share.leads for at in share.chunks]
    assert led == list(range(count))
    assert all(0 < len(share.chunks) <= MOST for share in shares)
    by_portion = {id(share.portion): share.chunks for share in shares}
    assert len(by_portion) == -(-count // MOST)
    assert all(share.chunks == by_portion[id(share.portion)] for share in shares)
    assert all(share.portion.helped == (min(workers, count) > 1) for share in shares)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_portion_is_made_late_and_forgotten_early(workers: int) -> None:
    made: list[weakref.ref[Part]] = []

    def make(*, helped: bool) -> Part:
        part = Part(helped=helped)
        made.append(weakref.ref(part))
        return part

    portions = Portions(10 * MOST, workers, make)
    assert not made
    for piece in range(portions.pieces):
        portions.share(piece)
        assert len(made) == piece // workers + 1
        is_last = piece % workers == workers - 1
        assert sum(part() is not None for part in made) == (0 if is_last else 1)
