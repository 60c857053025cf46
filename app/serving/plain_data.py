"""A walk through what a request holds: JSON, in which pydantic's models and vLLM's dataclasses stand here and there."""

from collections.abc import Iterable, Mapping

from pydantic import BaseModel


def inner(value: object) -> Iterable[object]:
    """What stands directly in `value`, keys of objects left out; nothing in a text, a number or a list of whole numbers
    (token ids, of which a prompt has many: a hundred thousand would be that many turns of a loop on the event loop).

    For a loop with a stack of its own, since data may nest deeper than Python's calls. A model's fields come as one
    mapping, and those that it does not declare as a second, which may be None. All other objects are taken for ends:
    an enum's member leads to its class and from there back.
    """
    if isinstance(value, (list, tuple)):
        return () if value and type(value[0]) is int and set(map(type, value)) == {int} else value
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, BaseModel):
        return (vars(value), value.model_extra)
    if hasattr(type(value), "__dataclass_fields__"):
        return (vars(value),)
    return ()
