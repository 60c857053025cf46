"""What a server may store before it hears from the janitor again."""

from app.tiers.curvine.credit import Credit


def test_credit_is_taken_given_back_and_raised() -> None:
    credit = Credit(limited=True)
    assert not credit.admit(10)
    credit.grant(25)
    assert credit.admit(10)
    assert credit.admit(10)
    assert not credit.admit(10)
    credit.refund(10)
    assert credit.admit(10)
    assert (credit.taken, credit.refused, credit.largest) == (20, 2, 10)
    credit.grant(None)
    assert credit.admit(1 << 40)
