"""Collects, for each request a replica is serving, what the scheduler said of its prompts. Pure; one event loop.

(unknown) --open--> open --prefill, any number--> open --close--> (forgotten)
"""

from dataclasses import dataclass, field

from app.cache_report import PromptTokens


@dataclass(frozen=True)
class Origin:
    """Whose request it is: Serve's internal id, when it arrived (monotonic seconds), whether it has several prompts,
    and what names its LoRA adapter's KV."""

    request: str
    arrived: float
    is_batch: bool
    adapter: str = ""


@dataclass
class _Entry:
    origin: Origin | None = None
    prompts: dict[str, tuple[str, PromptTokens]] = field(default_factory=dict)
    holders: int = 1
    ambiguous: bool = False


class ReportBook:
    """Requests by the id that the replica gave them; bounded by the requests that are open."""

    def __init__(self) -> None:
        self._open: dict[str, _Entry] = {}

    def open(self, request_id: str, origin: Origin | None = None) -> None:
        entry = self._open.get(request_id)
        if entry is None:
            self._open[request_id] = _Entry(origin)
        else:  # a client reuses an id while it is in use: whose prompt is whose cannot be told
            entry.holders += 1
            entry.ambiguous = True

    def prefill(self, internal_id: str, external_id: str, prompt: PromptTokens) -> Origin | None:
        """Note a prompt; returns the request's origin with its first one, None with the others.

        vLLM's external ids are `<kind>-<request id>` and, in a batch, `<kind>-<request id>-<n>`.

        The samples of one prompt (`n` > 1) share their external id; the first one's prefill is the prompt's.
        """
        entry = self._entry(external_id)
        if entry is None:
            return None
        is_first = not entry.prompts and not entry.ambiguous
        entry.prompts.setdefault(external_id, (internal_id, prompt))
        return entry.origin if is_first else None

    def peek(self, request_id: str) -> list[tuple[str, PromptTokens]] | None:
        """(internal id, prompt) of each prompt, in the order of their first tokens; None if it cannot be told."""
        entry = self._open[request_id]
        return None if entry.ambiguous else list(entry.prompts.values())

    def is_batch(self, request_id: str) -> bool:
        """Whether it has several prompts, as far as is known of it."""
        origin = self._open[request_id].origin
        return origin is not None and origin.is_batch

    def close(self, request_id: str) -> None:
        entry = self._open[request_id]
        entry.holders -= 1
        if entry.holders == 0:
            del self._open[request_id]

    def _entry(self, external_id: str) -> _Entry | None:
        name = external_id.partition("-")[2]
        return self._open.get(name) or self._open.get(name.rpartition("-")[0])

    def check_integrity(self) -> None:
        for request_id, entry in self._open.items():
            assert entry.holders > 0, (request_id, entry)

    def __len__(self) -> int:
        return len(self._open)
