"""A request whose replica is lost before it answered is asked again, within bounds; one that began is not."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError
from vllm.v1.engine.exceptions import EngineDeadError

from app.serving import second_try
from app.serving.engine_end import ReplicaLostError
from app.serving.second_try import with_second_try

DEAD = 'data: {"error": {"message": "EngineCore encountered an issue. See ...", "code": 500}}\n\n'


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_try, "_PAUSE_S", 0.0)


class Asked:
    """Answers each time with the next of `tries`: pieces, or an exception in their place."""

    def __init__(self, *tries: tuple[Any, ...]) -> None:
        self.tries, self.times = tries, 0

    async def __call__(self) -> AsyncGenerator[Any, None]:
        pieces = self.tries[min(self.times, len(self.tries) - 1)]
        self.times += 1
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece


async def read(asked: Asked, **options: Any) -> list[Any]:
    return [piece async for piece in with_second_try(lambda: asked(), **options)]


def in_replica(cause: Exception) -> Exception:
    arrived = RayTaskError("chat", "", cause).as_instanceof_cause()
    assert isinstance(arrived, Exception)
    return arrived


async def test_what_is_answered_is_asked_once() -> None:
    asked = Asked(("a", "b"))
    assert await read(asked) == ["a", "b"]
    assert asked.times == 1


@pytest.mark.parametrize("loss", [in_replica(EngineDeadError()), ActorDiedError(), DEAD, [DEAD]])
async def test_a_loss_before_the_first_piece_is_asked_again(loss: Any) -> None:
    asked = Asked((loss,), ("answer",))
    assert await read(asked) == ["answer"]
    assert asked.times == 2


async def test_what_may_have_killed_two_engines_is_not_given_to_a_third() -> None:
    asked = Asked((in_replica(EngineDeadError()),))
    with pytest.raises(EngineDeadError):
        await read(asked)
    assert asked.times == 2


async def test_what_was_refused_unread_is_asked_until_somebody_takes_it() -> None:
    refused = (in_replica(ReplicaLostError()),)
    asked = Asked(refused, refused, refused, (in_replica(EngineDeadError()),), ("answer",))
    assert await read(asked) == ["answer"]


async def test_but_not_for_ever() -> None:
    now = iter(range(0, 1000, 5))
    asked = Asked((in_replica(ReplicaLostError()),))
    with pytest.raises(ReplicaLostError):
        await read(asked, clock=lambda: next(now))
    assert asked.times == 4


async def test_an_answer_that_began_is_not_begun_again() -> None:
    asked = Asked(("a", ActorDiedError()))
    with pytest.raises(ActorDiedError):
        await read(asked)
    assert await read(Asked(("a", DEAD))) == ["a", DEAD], "for whoever passes the stream on to make of it what it is"
    assert asked.times == 1


@pytest.mark.parametrize(
    "error", [ValueError("the client's"), DeploymentUnavailableError.__new__(DeploymentUnavailableError)]
)
async def test_other_errors_are_not_tried_again(error: Exception) -> None:
    asked = Asked((error,))
    with pytest.raises(type(error)):
        await read(asked)
    assert asked.times == 1


@pytest.mark.parametrize("loss", [in_replica(EngineDeadError()), DEAD])
async def test_a_suspect_that_an_engine_has_begun_is_not_sent_to_another(loss: Any) -> None:
    asked = Asked((loss,), ("answer",))
    with pytest.raises(Exception):  # noqa: B017 - as it came
        await read(asked, suspect=True)
    assert asked.times == 1
