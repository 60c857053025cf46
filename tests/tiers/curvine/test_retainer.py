"""What of a load from L2 stays in L1."""

from app.tiers.curvine.retainer import Retainer


def test_the_retainer_keeps_all_but_the_rest_of_a_flood() -> None:
    retainer = Retainer(flood=10, head=2, remembered=100)
    assert retainer.choose("abc") == [True] * 3
    assert retainer.choose("xyzabcdefgh") == [True, True, False, True, True, True, *[False] * 5]
    for start in range(0, 1000, 10):
        retainer.choose(range(start, start + 10))
    assert len(retainer._seen) == 100
