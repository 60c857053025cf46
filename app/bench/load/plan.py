"""What a load is made of: conversations, each a sequence of requests of which one is sent after the other's answer.

A plan is complete before anything is sent, answers in the history included: so it can be replayed against another
replica or another system, and its prompts have the lengths that it says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.cache_report import REPLICA_HEADER

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A chat completion. `prompt_tokens` is the length of the prompt as the model sees it, chat template included.

    `pause_s` is how long after the answer before (for the first of a conversation: after its arrival) it is sent.
    """

    messages: tuple[Message, ...]
    prompt_tokens: int
    output_tokens: int
    phase: str = ""
    conversation: str = ""
    turn: int = 0
    pause_s: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def on(self, replica: str) -> "PlannedRequest":
        """Pinned to a replica (needs the application's `routing.debug`)."""
        return replace(self, headers={**self.headers, REPLICA_HEADER: replica})

    def body(self, model: str) -> dict[str, Any]:
        """As JSON for an endpoint: greedy, exactly `output_tokens` long on vLLM, streamed, with usage."""
        return {
            "model": model,
            "messages": [dict(message) for message in self.messages],
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.options,
        }


@dataclass(frozen=True, slots=True)
class Conversation:
    """Requests in order. A single request is a conversation of one."""

    name: str
    requests: tuple[PlannedRequest, ...]

    def on(self, replica: str) -> "Conversation":
        return replace(self, requests=tuple(request.on(replica) for request in self.requests))

    def in_phase(self, phase: str, **options: Any) -> "Conversation":
        """The same under another phase's name, with more body fields (a `cache_salt`, say)."""
        return replace(
            self,
            requests=tuple(
                replace(request, phase=phase, options={**request.options, **options}) for request in self.requests
            ),
        )


def single(request: PlannedRequest, name: str = "") -> Conversation:
    return Conversation(name or request.conversation, (replace(request, conversation=name or request.conversation),))


def count(conversations: Sequence[Conversation]) -> int:
    return sum(len(each.requests) for each in conversations)
