"""What Serve says of each deployment, and what of it is worth a line: crashes at the start, replicas lost and back.

starting --crash--> starting --too many--> failed
healthy --a replica is lost--> unhealthy --replaced--> healthy
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from app.local.failure import cause, remedy


@dataclass(frozen=True)
class Deployment:
    """A model's deployment or the ingress, at one moment. `status` is Serve's word for it."""

    name: str
    status: str
    message: str
    running: int
    replicas: int

    @property
    def title(self) -> str:
        """The name as the user's file has it."""
        return self.name.removeprefix("engine:")


def read_deployments() -> list[Deployment]:
    """Asks the controller of the cluster that this process is connected to; [] while it does not answer."""
    from ray import serve

    try:
        applications = serve.status().applications.values()
    except Exception:  # being started or stopped
        return []
    return [
        Deployment(
            name=name,
            status=str(one.status.value),
            message=one.message,
            running=sum(count for state, count in one.replica_states.items() if str(state) == "RUNNING"),
            replicas=sum(one.replica_states.values()),
        )
        for application in applications
        for name, one in application.deployments.items()
    ]


class StartCrashes:
    """Tells each crash of a starting replica once."""

    def __init__(self, logs: Path, read: Callable[[], list[Deployment]] = read_deployments) -> None:
        self._logs, self._read = logs, read
        self._told: set[str] = set()
        self._causes: set[str] = set()

    def new(self) -> list[str]:
        crashed = [one for one in self._read() if "Error:" in one.message and one.message not in self._told]
        self._told |= {one.message for one in crashed}
        return [f"a replica of {one.title} crashed{self._why(one)}" for one in crashed]

    def _why(self, one: Deployment) -> str:
        why = explained(one.message, self._logs)
        if why in self._causes:
            return ", as the one before"
        self._causes.add(why)
        return f": {why}"

    def failed(self) -> str | None:
        """Why the deployment was given up, if Serve says so."""
        found = [one for one in self._read() if one.status == "DEPLOY_FAILED" and one.message]
        return f"{found[0].title}: {explained(found[0].message, self._logs)}" if found else None


def explained(message: str, logs: Path) -> str:
    why = cause(message, logs)
    help_ = remedy(why)
    return f"{why}\n  -> {help_}" if help_ else why


class Losses:
    """Tells once when a replica of a healthy deployment is lost, and when all are there again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lost: dict[str, tuple[float, int]] = {}  # deployment -> when it began, how many ran when last told

    def changes(self, deployments: Iterable[Deployment]) -> list[str]:
        return [line for one in deployments if (line := self._change(one))]

    def _change(self, one: Deployment) -> str | None:
        known = self._lost.get(one.name)
        if one.status == "HEALTHY":
            if known is None:
                return None
            del self._lost[one.name]
            return f"{one.title}: all replicas ({one.running}) run again after {self._clock() - known[0]:.0f} s"
        if one.status != "UNHEALTHY" or (known is not None and one.running >= known[1]):
            return None
        self._lost[one.name] = (known[0] if known else self._clock(), one.running)
        return f"{one.title}: a replica is lost ({one.running} of {one.replicas} run), Serve starts another"
