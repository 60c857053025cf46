"""What every stage can do.

    absent --apply--> partial --apply--> applied --verify--> proved
      ^                  |                  |
      └-----destroy------┴-----destroy------┘

Each method may be called in any of these states and any number of times; whatever stops one of them half-way, calling
it again continues. None of them asks anything of a person.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from cluster.stages.context import Context

StageState = Literal["absent", "partial", "applied"]


@dataclass(frozen=True)
class StageStatus:
    state: StageState
    lines: tuple[str, ...]


class Stage(ABC):
    """Every method may block for as long as `context.options.timeout_s` and raises ClusterError, nothing else."""

    name: str
    title: str

    def check(self, context: Context) -> None:  # noqa: B027 - a stage without preconditions needs none
        """Preconditions. Changes nothing; raises ClusterError that names what is missing."""

    @abstractmethod
    def plan(self, context: Context) -> list[str]:
        """One line for each thing that `apply` would do. Changes nothing."""

    @abstractmethod
    def apply(self, context: Context) -> None:
        """Make it so and wait until it is. With dry_run: have the servers check it, and change nothing."""

    @abstractmethod
    def status(self, context: Context) -> StageStatus:
        """What is there now. Changes nothing."""

    @abstractmethod
    def verify(self, context: Context) -> list[str]:
        """Look at the real thing; one line for each fact that was found. Raises when one is not as it should be."""

    @abstractmethod
    def destroy(self, context: Context) -> None:
        """Undo, newest first, and wait until it is gone. What was there before this project is left."""
