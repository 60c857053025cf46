"""What somebody may have meant by a name that does not exist."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one that is most like `name`, if any is near."""
    found = difflib.get_close_matches(name, sorted(known), n=1)
    return found[0] if found else None


def hint(name: str, known: Iterable[str]) -> str:
    """`did you mean x?`, or the list of what there is if nothing is near."""
    names = sorted(known)
    near = nearest(name, names)
    return f"did you mean {near}?" if near else f"valid here: {', '.join(names)}"
