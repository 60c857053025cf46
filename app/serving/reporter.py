"""Says of a replica's prompts where their tokens came from: to the client in its answer, to routers at once.

The engine's scheduler tells at a prompt's first token what was in L0 and what came from outside (`prefilled`); the
node's cache server told a little before how much of the latter L1 and L2 held (`Lookups`). What belongs together is
found by the id that the replica gave the request (report_book.py).
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any, Protocol

from app.cache_report import CacheReport, PromptTokens, split, total
from app.serving.announcement import FirstToken
from app.serving.report_book import Origin, ReportBook
from app.serving.stream_preface import with_preface
from app.serving.usage_details import has_usage, with_report
from app.tiers.events import Lookup

# A lookup is published before the load it starts, so it is here long before the answer is; this covers a slow thread.
_LOOKUP_WAIT_S = 0.5


class Lookups(Protocol):
    """What the node's cache server found, by the engine's id of a prompt: app.tiers.events.LookupFeed."""

    def take(self, request_id: str, timeout_s: float = 0.0) -> Lookup | None: ...

    def peek(self, request_id: str) -> Lookup | None: ...


class Reporter:
    """Of one replica, on its event loop."""

    def __init__(self, replica: str, lookups: Lookups | None, announce: Callable[[FirstToken], None]) -> None:
        """`lookups` is None without a cache. `announce` neither blocks nor raises."""
        self._replica, self._lookups, self._announce = replica, lookups, announce
        self._book = ReportBook()

    async def reported(
        self, request: Any, responses: AsyncGenerator[Any, None], origin: Origin | None = None, with_first: bool = False
    ) -> AsyncGenerator[Any, None]:
        """Pass `responses` on, with the cache report written into the one that carries the usage; before the first
        piece of a stream goes what is known by then, if it is asked for.
        """
        options = getattr(request, "stream_options", None)
        in_stream = bool(getattr(request, "stream", False) and options and options.include_usage)
        name = request.request_id
        # Not before: the engine begins with the first step of `responses`, and a generator that is dropped before its
        # own first step never reaches its `finally`.
        self._book.open(name, origin)
        try:
            async for response in responses:
                if has_usage(response, in_stream=in_stream) and (report := await self._report(name)) is not None:
                    response = with_report(response, report)
                if with_first:
                    response, with_first = with_preface(response, self._at_first_piece(name)), False
                yield response
        finally:
            self._book.close(name)

    def prefilled(self, internal_id: str, external_id: str, prompt: PromptTokens) -> None:
        """At a prompt's first token. Neither blocks nor raises."""
        origin = self._book.prefill(internal_id, external_id, prompt)
        if origin is None:
            return
        seconds = time.monotonic() - origin.arrived
        if origin.is_batch:
            self._announce(FirstToken(origin.request, seconds, adapter=origin.adapter))
            return
        report = self._so_far(internal_id, prompt)
        numbers = (report.l0, report.l1, report.l2, report.computed)
        self._announce(FirstToken(origin.request, seconds, *numbers, adapter=origin.adapter))

    def __len__(self) -> int:
        """Requests that are open."""
        return len(self._book)

    def check_integrity(self) -> None:
        self._book.check_integrity()

    def _at_first_piece(self, request_id: str) -> dict[str, Any]:
        """The report of a request with one prompt, as far as it is here; of several prompts the others are not done."""
        prompts = self._book.peek(request_id) or []
        if len(prompts) != 1 or self._book.is_batch(request_id):
            return {"replica": self._replica}
        return replace(self._so_far(*prompts[0]), replica=self._replica).details()

    def _so_far(self, internal_id: str, prompt: PromptTokens) -> CacheReport:
        """Without waiting, and without taking what the whole report needs."""
        found = self._lookups.peek(internal_id) if prompt.external and self._lookups is not None else None
        return split(prompt, (found.l1_tokens, found.l2_tokens) if found else None)

    async def _report(self, request_id: str) -> CacheReport | None:
        prompts = self._book.peek(request_id)
        return total([await self._whole(*prompt) for prompt in prompts], self._replica) if prompts else None

    async def _whole(self, internal_id: str, prompt: PromptTokens) -> CacheReport:
        found = None
        if prompt.external and self._lookups is not None:
            found = self._lookups.take(internal_id)
            if found is None:
                found = await asyncio.to_thread(self._lookups.take, internal_id, _LOOKUP_WAIT_S)
        return split(prompt, (found.l1_tokens, found.l2_tokens) if found else None)
