"""When requests of an open loop arrive."""

import random


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """`count` arrivals of a Poisson process of `rate` a second, in seconds from the start; the first is at 0."""
    rng = random.Random(f"{seed}/arrivals")
    times, at = [], 0.0
    for _ in range(count):
        times.append(at)
        at += rng.expovariate(rate)
    return times
