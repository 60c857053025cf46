"""Prices per instance type: the user's own, or the listed ones once somebody has said that they may be used."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import yaml

from app.errors import ClusterError
from cluster.files import ROOT
from cluster.instances import instance


@dataclass(frozen=True)
class Prices:
    usd_per_hour: Mapping[str, float]
    note: str


def parse_own(entries: Iterable[str]) -> dict[str, float]:
    """`TYPE=USD` entries. Raises ClusterError for a type that is not known or a price that is none."""
    own = {}
    for entry in entries:
        name, _, value = entry.partition("=")
        instance(name)
        try:
            own[name] = float(value)
        except ValueError:
            raise ClusterError(f"--price {entry}: give TYPE=USD, e.g. ml.g6e.4xlarge=3.76") from None
        if not 0 < own[name] < float("inf"):
            raise ClusterError(f"--price {entry}: must be more than zero")
    return own


def prices(own: Mapping[str, float], *, confirmed: bool) -> Prices:
    """The user's own win. Raises ClusterError without any, until the listed ones are confirmed."""
    listed = yaml.safe_load((ROOT / "cost" / "prices.yaml").read_text())
    if confirmed or listed["confirmed"]:
        note = f"{listed['kind']}, {listed['region']}, read on {listed['read_on']}: {listed['source']}"
        return Prices({**listed["usd_per_hour"], **own}, note + ("; some given on the command line" if own else ""))
    if not own:
        raise ClusterError(
            f"the listed prices are {listed['kind']} ({listed['region']}, read on {listed['read_on']}) and nobody has "
            "confirmed them. Give what you pay with --price TYPE=USD (repeat for each type to compare), or accept the "
            "list with --prices-confirmed"
        )
    return Prices(own, "given on the command line")
