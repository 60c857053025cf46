"""Strategy name -> policy. Options are checked here, so that a wrong one fails at deployment and not at the first
request.
"""

import inspect
from collections.abc import Callable

import msgspec

from app.errors import SettingsError
from app.routing.kv_aware import KvAware
from app.routing.load import LoadBook
from app.routing.policy import Policy
from app.routing.prefix_aware import PrefixAware
from app.routing.roster import Roster
from app.routing.round_robin import RoundRobin
from app.routing.session import Session

STRATEGIES: dict[str, Callable[..., Policy]] = {
    "kv_aware": KvAware,
    "prefix_aware": PrefixAware,
    "round_robin": RoundRobin,
    "session": Session,
}


def make_policy(
    strategy: str,
    roster: Roster,
    load: LoadBook,
    clock: Callable[[], float],
    random: Callable[[], float],
    options: dict[str, object],
) -> Policy:
    """Raises SettingsError for an unknown strategy or option, or a value that the option cannot have."""
    make = STRATEGIES.get(strategy)
    if make is None:
        raise SettingsError(f"unknown routing strategy {strategy!r}: choose one of {', '.join(sorted(STRATEGIES))}")
    takes = inspect.signature(make).parameters
    known = [name for name, parameter in takes.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise SettingsError(
            f"routing strategy {strategy} has no option {unknown[0]!r}; it has: {', '.join(known) or 'none'}",
            (unknown[0],),
        )
    checked = {name: _checked(name, value, takes[name].annotation) for name, value in options.items()}
    given: dict[str, object] = {"roster": roster, "load": load, "clock": clock, "random": random}
    return make(**{name: value for name, value in given.items() if name in takes}, **checked)


def _checked(name: str, value: object, kind: object) -> object:
    """`value` as the option's annotation wants it, bounds included."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        expected, _, _ = str(error).replace("`", "").partition(", got ")
        raise SettingsError(f"{name}: {expected[0].lower()}{expected[1:]}, not {value!r}", (name,)) from None
