"""Waiting with progress: until ready, failed for good, or out of time. A lost connection is waited out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.errors import ClusterError
from cluster.clock import Clock
from cluster.kube.api import Api
from cluster.kube.readiness import Readiness, readiness
from cluster.kube.transport import ConnectionLostError
from cluster.render.objects import Ref

POLL_S = 5.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Waiter:
    clock: Clock
    say: Say
    poll_s: float = POLL_S

    def until(self, what: str, look: Callable[[], Readiness], timeout_s: float) -> None:
        """Look again and again; a line is said when the text changes.

        Raises:
            ClusterError: `look` says failed, or the time is over; the message carries the last thing that was seen.
        """
        deadline, last = self.clock.now() + timeout_s, ""
        while True:
            seen = self._look(look)
            if seen.text != last:
                self.say(f"  {what}: {seen.text}")
                last = seen.text
            if seen.state == "ready":
                return
            if seen.state == "failed":
                raise ClusterError(f"{what}: {seen.text}")
            if self.clock.now() >= deadline:
                raise ClusterError(
                    f"{what}: not ready after {timeout_s:g} s (last seen: {seen.text}). What is done is kept: "
                    "apply again to go on waiting"
                )
            self.clock.sleep(self.poll_s)

    def _look(self, look: Callable[[], Readiness]) -> Readiness:
        try:
            return look()
        except ConnectionLostError as error:
            return Readiness("waiting", f"no connection ({error}), trying again")
        except ClusterError as error:
            if isinstance(error.__cause__, ConnectionLostError):
                return Readiness("waiting", "no connection, trying again")
            raise

    def ready(self, api: Api, refs: Sequence[Ref], timeout_s: float) -> None:
        """Until every object is ready. One deadline for all."""
        deadline = self.clock.now() + timeout_s
        for ref in refs:
            self.until(str(ref), lambda ref=ref: _of(api, ref), max(0.0, deadline - self.clock.now()))  # type: ignore[misc]

    def gone(self, api: Api, ref: Ref, timeout_s: float) -> None:
        """Until the object is not there any more (finalizers can take minutes)."""

        def look() -> Readiness:
            found = api.get(ref)
            if found is None:
                return Readiness("ready", "gone")
            holding = ", ".join(found["metadata"].get("finalizers") or []) or "being deleted"
            return Readiness("waiting", f"still there ({holding})")

        self.until(str(ref), look, timeout_s)


def _of(api: Api, ref: Ref) -> Readiness:
    found = api.get(ref)
    return readiness(found) if found is not None else Readiness("waiting", "not there")
