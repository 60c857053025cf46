"""What a user can do wrong, as one tree:

TierserveError                  everything this package raises on purpose
├── SettingsError               a setting is unknown, malformed or contradicts another
├── MachineError                this machine cannot do what was asked (memory, disk, CPU, port)
├── ModelError                  a model cannot be found, converted or loaded
├── ServingError                the application is not there or did not become ready
├── PoolError                   an L2 pool cannot be opened as configured
└── ClusterError                a cluster cannot be planned, reached, changed or verified as asked

Every message says what is wrong and what to do about it. Expected outcomes (a miss, no room, a declined load) are
return values and never appear here; broken invariants are asserts.
"""

Loc = tuple[int | str, ...]
"""The keys and positions that lead to a value in a tree of settings."""


class TierserveError(Exception):
    """Root of every error meant for a person. `str(error)` is one or a few lines, complete without a traceback."""

    def __init__(self, message: str, about: Loc = ()) -> None:
        """`about`: what is wrong, if it stands in a file: its keys, from the section on that was looked at."""
        super().__init__(message)
        self.about = about


class SettingsError(TierserveError):
    """A setting is unknown, malformed or contradicts another."""


class MachineError(TierserveError):
    """This machine cannot do what was asked: memory, disk, CPU, a port, shared memory."""


class ModelError(TierserveError):
    """A model cannot be found, converted or loaded."""


class ServingError(TierserveError):
    """The application is not there, or did not become ready."""


class PoolError(TierserveError):
    """An L2 pool cannot be opened as configured."""


class ClusterError(TierserveError):
    """A cluster cannot be planned, reached, changed or verified as asked."""
