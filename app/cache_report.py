"""Where the tokens of one prompt came from. The system's own count, sent back with each response. Pure values.

In a response body it stands in `usage.prompt_tokens_details` beside OpenAI's `cached_tokens`; over HTTP also in the
header `x-tierserve-cache`, as `l0=1024, l1=448, l2=0, computed=51`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

CACHE_HEADER = "x-tierserve-cache"
REPLICA_HEADER = "x-tierserve-replica"
# With `routing.debug`: why the replica was chosen, as JSON.
ROUTING_HEADER = "x-tierserve-routing"


@dataclass(frozen=True)
class PromptTokens:
    """One prompt as the engine's scheduler saw it: tokens found in its own blocks, loaded from outside, and in all."""

    total: int
    local: int
    external: int


@dataclass(frozen=True)
class CacheReport:
    """Tokens of a request's prompt(s) by origin; they add up to the prompt.

    `l1` and `l2` are None when the engine loaded tokens but what its cache server said of them did not arrive in time:
    their sum (`external`) is then still exact. Nothing here is ever estimated.
    """

    l0: int
    external: int
    computed: int
    l1: int | None
    l2: int | None
    replica: str = ""

    @property
    def prompt_tokens(self) -> int:
        return self.l0 + self.external + self.computed

    @property
    def cached_tokens(self) -> int:
        return self.l0 + self.external

    def check_integrity(self) -> None:
        assert min(self.l0, self.external, self.computed) >= 0, self
        assert self.l1 is None or self.l2 is None or self.l1 + self.l2 == self.external, self

    def details(self) -> dict[str, Any]:
        """The fields that go into `usage.prompt_tokens_details`. A split that is not known is left out."""
        known = {"l0_tokens": self.l0, "l1_tokens": self.l1, "l2_tokens": self.l2, "computed_tokens": self.computed}
        fields: dict[str, Any] = {"cached_tokens": self.cached_tokens}
        fields |= {name: value for name, value in known.items() if value is not None}
        return fields | ({"replica": self.replica} if self.replica else {})

    def header(self) -> str:
        if self.l1 is None or self.l2 is None:
            return f"l0={self.l0}, l1+l2={self.external}, computed={self.computed}"
        return f"l0={self.l0}, l1={self.l1}, l2={self.l2}, computed={self.computed}"


def split(prompt: PromptTokens, lookup: "tuple[int, int] | None") -> CacheReport:
    """Attribute a prompt's tokens to tiers.

    `lookup` is (l1, l2): the cache server can serve `[0, l1)` from L1 and `[l1, l1 + l2)` from L2. The engine had
    `[0, local)` itself and loaded `[local, local + external)`:

        0        local                 local+external      total
        |---L0----|------ loaded -------|---- computed -----|
        |------ L1 ------|---- L2 ------|
    """
    computed = prompt.total - prompt.local - prompt.external
    if prompt.external == 0:
        return CacheReport(prompt.local, 0, computed, 0, 0)
    if lookup is None or sum(lookup) < prompt.local + prompt.external:  # not there, or not of this load
        return CacheReport(prompt.local, prompt.external, computed, None, None)
    l1_end = min(lookup[0], prompt.local + prompt.external)
    l1 = max(0, l1_end - prompt.local)
    return CacheReport(prompt.local, prompt.external, computed, l1, prompt.external - l1)


def total(reports: Iterable[CacheReport], replica: str) -> CacheReport | None:
    """The report of a request with several prompts; None if there is none."""
    parts = list(reports)
    if not parts:
        return None
    known = all(part.l1 is not None and part.l2 is not None for part in parts)
    return CacheReport(
        l0=sum(part.l0 for part in parts),
        external=sum(part.external for part in parts),
        computed=sum(part.computed for part in parts),
        l1=sum(part.l1 or 0 for part in parts) if known else None,
        l2=sum(part.l2 or 0 for part in parts) if known else None,
        replica=replica,
    )


def from_details(details: Mapping[str, Any] | None) -> CacheReport | None:
    """Read a report back from `usage.prompt_tokens_details`; None if there is none in it."""
    if not details or details.get("l0_tokens") is None or details.get("computed_tokens") is None:
        return None
    l0, computed = int(details["l0_tokens"]), int(details["computed_tokens"])
    external = int(details.get("cached_tokens") or 0) - l0
    l1, l2 = details.get("l1_tokens"), details.get("l2_tokens")
    return CacheReport(l0, external, computed, l1, l2, str(details.get("replica") or ""))
