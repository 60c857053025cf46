"""What somebody may have meant by a name that does not exist."""

import difflib
from collections.abc import Iterable


def hint(name: str, known: Iterable[str]) -> str:
    """`did you mean x?`, or the list of what there is if nothing is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"valid here: {', '.join(names)}"
