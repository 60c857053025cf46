"""What routers are told at a prompt's first token; what answers carry is in test_server.py."""

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from app.cache_report import PromptTokens
from app.serving.announcement import FirstToken
from app.serving.report_book import Origin
from app.serving.reporter import Reporter
from app.tiers.events import Lookup

PROMPT = PromptTokens(total=200, local=64, external=128)


class Lookups:
    def __init__(self, **found: Lookup) -> None:
        self.found = found

    def take(self, request_id: str, timeout_s: float = 0.0) -> Lookup | None:
        return self.found.pop(request_id, None)

    def peek(self, request_id: str) -> Lookup | None:
        return self.found.get(request_id)


async def told_of(origin: Origin | None, lookups: Lookups | None, *internal: str) -> list[FirstToken]:
    """What routers hear of one request, of which the engine begins these prompts; nothing is kept of it."""
    told: list[FirstToken] = []
    reporter = Reporter("replica-1", lookups, told.append)

    async def responses() -> AsyncGenerator[Any, None]:
        for number, name in enumerate(internal):
            reporter.prefilled(name, f"cmpl-mine-{number}", PROMPT)
        yield SimpleNamespace(usage=None)

    assert [one async for one in reporter.reported(SimpleNamespace(request_id="mine"), responses(), origin)]
    assert len(reporter) == 0
    reporter.check_integrity()
    return told


async def test_routers_hear_of_a_prompt_once_with_what_each_tier_held() -> None:
    [told] = await told_of(Origin("serve's", 0.0, False, "adapter@1"), Lookups(one=Lookup(128, 128)), "one")
    assert (told.request, told.l0, told.l1, told.l2, told.computed) == ("serve's", 64, 64, 64, 8)
    assert told.adapter == "adapter@1"
    assert told.seconds > 0


async def test_of_a_batch_routers_hear_the_time_and_no_tokens() -> None:
    [told] = await told_of(Origin("serve's", 0.0, True), Lookups(one=Lookup(128, 128)), "one", "two")
    assert told == FirstToken("serve's", told.seconds)


async def test_without_a_cache_nothing_is_looked_up() -> None:
    [told] = await told_of(Origin("serve's", 0.0, False), None, "one")
    assert told.l0 == 64


async def test_nobody_is_told_of_a_request_that_is_not_serve_s() -> None:
    assert await told_of(None, Lookups(), "one") == []


def test_a_prompt_of_nobody_s_is_no_mistake() -> None:
    """Ray's own warm-up, or a request that ended meanwhile."""
    told: list[FirstToken] = []
    Reporter("replica-1", None, told.append).prefilled("one", "cmpl-unknown-0", PROMPT)
    assert told == []
