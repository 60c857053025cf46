"""Who holds how much of a prompt: lists of (how much, mask of the replicas that hold so much)."""

_LEVELS = 8
"""Lengths of runs that are told apart once a prompt is held to many different lengths."""


def disjoint(runs: list[tuple[int, int]], everyone: int) -> list[tuple[int, int]]:
    """The same with each replica only at the most it has, the longest first; those without any at 0."""
    found: list[tuple[int, int]] = []
    for tokens, replicas in sorted(runs, key=lambda run: -run[0]):
        if here := replicas & everyone:
            found.append((tokens, here))
            everyone ^= here
    return [*found, (0, everyone)] if everyone else found


def few_of(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most 2 * `_LEVELS` + 1 of them, longest first: the longest as they are, and of the others those less than a
    part in `_LEVELS` of the longest apart as one, at what all of them have.
    """
    if len(runs) <= 2 * _LEVELS:
        return runs
    few, width = runs[:_LEVELS], runs[0][0] / _LEVELS
    level = -1
    for tokens, replicas in runs[_LEVELS:]:
        if int(tokens / width) == level:
            few[-1] = (tokens, few[-1][1] | replicas)
        else:
            few.append((tokens, replicas))
            level = int(tokens / width)
    return few
