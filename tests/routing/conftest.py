"""A small fleet to route over: a clock that stands still unless moved, and a core with everything injected."""

import random
from typing import Any

import pytest

from app.routing.core import RoutingCore
from app.routing.policy import CacheReport, Ranking, Replica, Request
from app.routing.prompt import read_prompt


class Fleet:
    """Drives a RoutingCore the way the adapter does. Every step leaves its state consistent."""

    def __init__(self, strategy: str, replicas: int, **options: Any) -> None:
        self.now = 0.0
        self.core = RoutingCore(strategy, options, clock=lambda: self.now, rng=random.Random(5))
        self.names = [f"r{number}" for number in range(replicas)]
        self.nodes = {name: f"n{number % 2}" for number, name in enumerate(self.names)}
        self.made = 0
        self.update()

    def update(self) -> None:
        self.core.update_replicas([Replica(name, self.nodes.setdefault(name, "n0")) for name in self.names])

    def choose(self, body: Any, session: str | None = None, tokens: list[int] | None = None) -> tuple[str, Ranking]:
        self.made += 1
        name = f"q{self.made}"
        return name, self.core.choose(Request(name, read_prompt(body), session, tokens))

    def send(self, body: Any, session: str | None = None, tokens: list[int] | None = None) -> tuple[str, str]:
        """Choose and dispatch; returns the request's name and its replica."""
        name, ranking = self.choose(body, session, tokens)
        assert ranking.best is not None
        replica = ranking.best.replica
        self.core.settled(name, replica)
        self.core.accepted(name, replica)
        return name, replica

    def serve(self, body: Any, session: str | None = None, report: CacheReport | None = None) -> str:
        """One whole request; returns its replica."""
        name, replica = self.send(body, session)
        self.core.completed(name, report)
        self.core.ended(name, replica)
        self.core.check_integrity()
        return replica


@pytest.fixture
def fleet_of() -> type[Fleet]:
    return Fleet
