"""One request to one replica, and what the system says of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from app.cache_report import REPLICA_HEADER, CacheReport, from_details
from app.errors import ClusterError

Message = dict[str, str]


@dataclass(frozen=True)
class Reply:
    seconds: float
    report: CacheReport
    text: str


@dataclass(frozen=True)
class Endpoint:
    """A model behind an OpenAI endpoint whose routing lets a request name its replica (`routing.debug`)."""

    http: httpx.Client
    url: str
    model: str
    key: str = ""
    timer: Callable[[], float] = time.perf_counter

    def ask(self, messages: Sequence[Message], replica: str, max_tokens: int = 1) -> Reply:
        """With one token to generate, the time is the time to first token (and the way there and back).

        Raises:
            ClusterError: no answer, an error, another replica than the one that was named, or no cache report.
        """
        headers = {REPLICA_HEADER: replica} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        body = {"model": self.model, "messages": list(messages), "max_tokens": max_tokens, "temperature": 0, "seed": 0}
        start = self.timer()
        try:
            answer = self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers)
        except httpx.HTTPError as error:
            raise ClusterError(f"{self.url} does not answer: {error}") from error
        seconds = self.timer() - start
        if answer.status_code != 200:
            raise ClusterError(f"{self.url}: HTTP {answer.status_code}: {answer.text[:400]}")
        return Reply(seconds, *_parts(answer.json(), replica))


def _parts(body: dict[str, object], replica: str) -> tuple[CacheReport, str]:
    usage = body.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    report = from_details(details)
    if report is None:
        raise ClusterError(
            "the answer carries no cache report (usage.prompt_tokens_details): is this tierserve's ingress?"
        )
    if report.replica != replica:
        raise ClusterError(
            f"replica {report.replica or '?'} answered instead of {replica}: set routing.debug in the serve file, and "
            "look whether the replica is still there"
        )
    choices = body.get("choices")
    assert isinstance(choices, list), body
    return report, str(choices[0]["message"].get("content") or "")
