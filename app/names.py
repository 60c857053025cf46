"""What somebody may have meant by a name that does not exist."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one that is most like `name`, if any is near."""
    return next(iter(_near(name, sorted(known), 1)), None)


def hint(name: str, known: Iterable[str], most: int = 1) -> str:
    """`did you mean x?`, or `x or y` of so many, or the list of what there is if nothing is near."""
    names = sorted(known)
    near = _near(name, names, most)
    return f"did you mean {' or '.join(near)}?" if near else f"valid here: {', '.join(names)}"


def _near(name: str, names: list[str], most: int) -> list[str]:
    return difflib.get_close_matches(name, names, n=most)
