"""How the servers that share a pool and its janitor talk: small JSON files in ROOT/control.

    reports/WRITER.n.json    a server's uses since its last report; removed by the janitor once it has counted them
    status.json              the janitor's word: usage, capacity, everybody's credit; replaced every tick
    evicted/n.json           what was evicted; the last few are kept for the servers to read
    ledger.arrow             the janitor's memory, for its successor

No message may get lost on a crash, except one that a scan of the pool makes up for. One thread a side; everything
blocks on the file system; OSError passes through except where a file is simply not there.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from app.tiers.curvine.usage import Report, Stored

_KEPT_EVICTIONS = 256


@dataclass(frozen=True, slots=True)
class Status:
    """What the janitor says of the pool."""

    owner: str
    tick: int
    used_bytes: int
    files: int
    capacity_bytes: int
    grants: dict[str, int]
    """Writer -> bytes that it may store in all, ever. Without meaning where capacity is 0."""
    settled: dict[str, int]
    """Writer -> bytes of that which are known to be stored, for the janitor's successor."""
    worth: dict[str, float] = field(default_factory=dict)
    """Family -> seconds of prefill that a byte saves, for the same."""


@dataclass(frozen=True, slots=True)
class Received:
    """One report with its sender."""

    writer: str
    report: Report


class Exchange:
    """Both ends. `writer` names this server; it must not contain a dot."""

    def __init__(self, root: str, writer: str) -> None:
        self._writer = writer.replace(".", "-")
        self._control = f"{root}/control"
        self._reports = f"{self._control}/reports"
        self._evictions = f"{self._control}/evicted"
        self._serial = 0
        self._seen: int | None = None

    @property
    def writer(self) -> str:
        return self._writer

    @property
    def lease_path(self) -> str:
        return f"{self._control}/lease"

    @property
    def ledger_path(self) -> str:
        return f"{self._control}/ledger.arrow"

    def open(self) -> None:
        """Creates the directories; cheap if they are there. Every tick, because somebody may have removed the pool."""
        for directory in (self._reports, self._evictions):
            os.makedirs(directory, exist_ok=True)

    # -- a server's end -------------------------------------------------------------------------------------------

    def send(self, report: Report) -> None:
        self._serial += 1
        self._write(f"{self._reports}/{self._writer}.{self._serial:012d}.json", asdict(report))

    def status(self) -> Status | None:
        """The janitor's last word; None if there is none that can be read."""
        with suppress(FileNotFoundError, ValueError, TypeError), open(f"{self._control}/status.json") as source:
            return Status(**json.load(source))
        return None

    def evictions(self) -> list[str]:
        """Names evicted since the last call; the first call only takes note of where the announcements are."""
        numbers = sorted(self._numbers())
        if self._seen is None:
            self._seen = numbers[-1] if numbers else 0
            return []
        names: list[str] = []
        for number in numbers:
            if number > self._seen:
                with suppress(FileNotFoundError, ValueError), open(f"{self._evictions}/{number:012d}.json") as source:
                    names += json.load(source)
                self._seen = number
        return names

    # -- the janitor's end ----------------------------------------------------------------------------------------

    def receive(self) -> list[Received]:
        """Everybody's reports, oldest first, and removes them: at most once, for a report that is counted twice would
        be worse than one that a scan makes up for."""
        received = []
        for name in sorted(os.listdir(self._reports)):
            writer, _, rest = name.partition(".")
            if not rest.endswith(".json"):
                continue
            path = f"{self._reports}/{name}"
            with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
                with open(path) as source:
                    fields = json.load(source)
                os.unlink(path)
                stored = tuple(Stored(**item) for item in fields.pop("stored"))
                received.append(Received(writer, Report(stored=stored, **fields)))
        return received

    def announce(self, names: list[str]) -> None:
        """Tells every server what was evicted."""
        numbers = sorted(self._numbers())
        last = numbers[-1] if numbers else 0
        self._write(f"{self._evictions}/{last + 1:012d}.json", names)
        for number in numbers[:-_KEPT_EVICTIONS]:
            with suppress(FileNotFoundError):
                os.unlink(f"{self._evictions}/{number:012d}.json")

    def publish(self, status: Status) -> None:
        self._write(f"{self._control}/status.json", asdict(status))

    def _numbers(self) -> list[int]:
        names = (name.partition(".")[0] for name in os.listdir(self._evictions) if name.endswith(".json"))
        return [int(name) for name in names if name.isdigit()]

    def _write(self, path: str, value: Mapping[str, object] | list[str]) -> None:
        temporary = f"{path}.{self._writer}.new"
        with open(temporary, "w") as sink:
            json.dump(value, sink)
        os.replace(temporary, path)
